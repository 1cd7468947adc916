"""Embeddings in CSV tables of others."""

from pathlib import Path

import numpy as np
import pytest

from facerec.embedding import read_embeddings
from facerec.embedding.file import is_embeddings
from facerec.errors import DatasetError


@pytest.mark.parametrize(
    "text",
    [
        "image_id,subject_id,e0,e1\na,anna,1,2\nb,bert,,\nc,anna,-3,0.5\n",
        "image_id;e1;extra;e0;subject_id\na;2;x;1;anna\nb;NaN;x;None;bert\nc;0.5;x;-3;anna\n",
        'ids\tsubjects\tembedding\na\tanna\t"[1, 2]"\nb\tbert\t\nc\tanna\t"[-3, 0.5]"\n',
    ],
)
def test_a_table_in_any_layout_is_the_same_embeddings(tmp_path: Path, text: str) -> None:
    path = tmp_path / "embeddings.csv"
    path.write_text(text)
    assert is_embeddings(path)
    found = read_embeddings(path)
    np.testing.assert_array_equal(found.vectors, [[1, 2], [np.nan] * 2, [-3, 0.5]])
    np.testing.assert_allclose(found.norms, [5**0.5, np.nan, 9.25**0.5], rtol=1e-6)
    assert found.ids is not None and found.ids.tolist() == ["a", "b", "c"]
    assert found.subjects is not None and found.subjects.tolist() == ["anna", "bert", "anna"]
    assert list(found.failures) == [1] and "line 3" in found.failures[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("label,score\n1,0.5\n", "line 1.*image_id"),
        ("image_id,e0,e2\na,1,2\n", "no column 'e1'"),
        ("image_id,e0,e1\na,1,x\n", "line 2.*not all numbers"),
        ("image_id,e0,e1\na,1,inf\n", "line 2.*finite"),
        ("image_id,e0,e1\na,1\n", "line 2.*2 fields"),
        ("image_id,e0\na,1\na,2\n", "'a'"),
        ("image_id,embedding\na,\n", "no embedding"),
    ],
)
def test_a_table_that_is_none_is_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "embeddings.csv"
    path.write_text(text)
    with pytest.raises(DatasetError, match=words):
        read_embeddings(path)
