"""Figures that must not change: some 590 points and 340 limits, from inputs that are fixed.

What is frozen lies in ``CASE.json``: `points` are figures that users quote and that a change of the
code behind them must leave as they are; `intervals` are their confidence limits and what else rests
on resampled subjects, which may change in a step that says so.

* `adapters` is all that knows facerec. A command or a file format that changes is changed there,
  and the figures keep their names.
* `people` makes embeddings that give the same figures on every processor.
* `cases` computes each case. The exact ones start from seeded numbers and agree to nine digits
  everywhere. The network ones (`NETWORK`) start from embeddings that a network computes. Those
  differ by rounding between processors, whose products add in different orders: a score moves by
  1e-6, and a pair next to a threshold changes sides. They agree to nine digits on the processor
  and with the libraries that wrote the file (`written_on`), and elsewhere as far as `LOOSE` says.

Write the figures anew, after a change that is meant to change them, with a reason in the commit::

    python -m tests.golden.make [CASE …]

LFW and Cars196 are read from ``../shared/data`` (or FACEREC_TEST_DATA); without them their cases
are skipped. No face and no embedding of a person is stored here, and no score of a pair.
"""
