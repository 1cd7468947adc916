"""The notebooks of examples/: they run from top to bottom and compute what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest import MonkeyPatch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "holds"),
    [
        (
            "verify_a_strangers_onnx",
            "trials.verdict.startswith('best: --channels bgr --mean 0 --std 1 ') and parity < 1e-5"
            " and changes.low.iloc[0] > 0",
        ),
        # The planted differences are found, and no rate lies far from its true one.
        (
            "audit_a_table_of_scores",
            "len(rates) == 4 and rates.truth.between(rates.low / 1.5, rates.high * 1.5).all()"
            " and any(one.conclusion == 'difference detected' for one in audit.findings)",
        ),
    ],
)
def test_a_notebook_runs(name: str, holds: str, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient")
    import nbformat

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs"
    notebook.cells.append(nbformat.v4.new_code_cell(f"assert {holds}"))
    where = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
