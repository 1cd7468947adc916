"""What ``facerec group`` makes of real faces whose names it does not see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from measures_planted import SETS
from rows import Row

from facerec.embedding import read_embeddings
from facerec.galleries.grouping import group_faces


def grouping(
    *,
    embeddings: Sequence[Path] = SETS,
    draws: Sequence[tuple[int, int]] = ((300, 20), (3000, 5), (0, 1)),
) -> Iterator[Row]:
    """Group faces of several files taken together.

    Args:
        embeddings: files that say who is on the images.
        draws: faces taken at random, 0 for all, and how often.
    """
    if missing := [str(path) for path in embeddings if not path.exists()]:
        yield Row("grouping", None, "", remark=f"there is no {missing[0]}; make it with embed")
        return
    read = [read_embeddings(path) for path in embeddings]
    vectors = np.concatenate([each.vectors for each in read])
    names = [f"{n} {who}" for n, each in enumerate(read) for who in each.subjects.tolist()]
    people = np.unique(names, return_inverse=True)[1]
    for size, times in draws:
        found = []
        for seed in range(times):
            rows = np.random.default_rng(seed).permutation(len(people))[: size or None]
            made = group_faces(vectors[rows], pd.DataFrame(index=rows.astype(str)))
            both = pd.DataFrame({"group": made.groups, "who": people[rows]})
            cells, groups, who = (
                both.value_counts(key).to_numpy() for key in (["group", "who"], "group", "who")
            )
            pairs = [float((n * (n - 1) / 2).sum()) for n in (cells, groups, who)]
            share = both.value_counts() / both["group"].value_counts()
            bcubed = float((share * both.value_counts()).sum() / len(rows))
            precision = pairs[0] / max(pairs[1], 1), bcubed
            found.append([*precision, pairs[0] / pairs[2], len(cells) - len(groups), made.wrong])
        *measured, false, stated = np.array(found).T
        told = f"{times} draws of {size:,} faces" if size else f"all {len(people):,} faces"
        what = "pair precision", "BCubed precision"
        for name, each in zip(what, measured[:2], strict=True):
            good = f"at least .99 in {np.count_nonzero(each >= 0.99)}"
            yield Row(f"{told}: {name}, least", each.min(), "", 0.99, "higher", good)
        yield Row(f"{told}: pair recall", measured[2].mean(), "", better="higher")
        within = np.count_nonzero(false <= 3 * stated + 3)
        told = f"{told}: false merges, mean"
        yield Row(told, false.mean(), "", remark=f"stated {stated.mean():.2g}; {within} within")
