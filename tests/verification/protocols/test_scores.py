"""Score files: every form, against what was written, and mistakes in them."""

from __future__ import annotations

import codecs
import tempfile
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from facerec.base.errors import DatasetError
from facerec.verification.protocols import read_scores


def table(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "scores.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.booleans(), st.floats(allow_subnormal=True), st.integers(0, 3)), min_size=2
    ).filter(lambda rows: len({fold for *_, fold in rows}) > 1),
    st.sampled_from([("0", "1"), ("impostor", "Genuine"), ("non-mated", "mated"), ("-1", "1")]),
    st.sampled_from([",", "\t"]),
)
def test_scores_come_back_bit_for_bit(
    rows: list[tuple[bool, float, int]], words: tuple[str, str], mark: str
) -> None:
    lines = [mark.join(["fold", "label", "note", "score"])]
    lines += [
        mark.join([str(fold), words[same], "x", repr(score) if score == score else ""])
        for same, score, fold in rows
    ]
    text = "\n".join(lines) + "\n"
    expected = np.array([score for _, score, _ in rows])
    with tempfile.TemporaryDirectory() as folder:
        for content in (text.encode(), codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode()):
            path = Path(folder) / "s.csv"
            path.write_bytes(content)
            scored = read_scores(path)
            np.testing.assert_array_equal(scored.scores, expected)
            assert (np.signbit(scored.scores) == np.signbit(expected))[expected == 0].all()
            assert scored.issame.tolist() == [same for same, _, _ in rows]
            assert scored.folds is not None and scored.subjects is None
            _, folds = np.unique([fold for *_, fold in rows], return_inverse=True)
            assert scored.folds.tolist() == folds.tolist()


def test_bob_csv_knows_the_persons(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "bio_ref_subject_id,bio_ref_key,probe_subject_id,probe_key,probe_gender,score\n"
        'ann,"x,1",ann,p1,f,.5\nbob,x2,ann,p2,f,-inf\nann,x1,zoe,p3,,nan\n',
    )
    scored = read_scores(path)
    assert scored.issame.tolist() == [True, False, False]
    np.testing.assert_array_equal(scored.scores, [0.5, -np.inf, np.nan])
    assert scored.subjects[0].tolist() == [0, 1, 0] and scored.subjects[1].tolist() == [0, 0, 2]
    assert scored.source["format"] == "csv" and len(scored) == 3


def test_bobs_own_files(shared_data: Path) -> None:
    path = shared_data / "oracles" / "bob_dev-1.txt"
    scored = read_scores(path)
    acquired = ~np.isnan(scored.scores)
    assert int((~acquired).sum()) == 54
    assert int(scored.issame[acquired].sum()) == 451
    for line, score, same in zip(
        path.read_text().split("\n"), scored.scores, scored.issame, strict=False
    ):
        label, text = line.split()
        assert same == (label == "1") and np.array_equal(score, float(text), equal_nan=True)


SUBJECTS = "bio_ref_subject_id,probe_subject_id"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "list is empty"),
        ("label,score\n", "no scores"),
        ("label,score\n1,.5\n0,abc\n", "line 3: .*'abc'"),
        ("label,score\n1,.5\n0\n", "line 3: 1 fields"),
        ("1 .5\n0 .5 7\n", "line 2: .* 2 fields"),
        ("label,score,fold\n1,.5,0\n0,.5,x\n", "line 3: the fold 'x'"),
        ("score,x\n.5,1\n", "line 1: .* label"),
        ("label,score,score\n1,2,3\n", "line 1: .* two"),
        (b"label,score\n1,.5\n\xff,.5\n", "UTF-8"),
        (f"{SUBJECTS},score\na,a,1\n,,1\n", "line 3: .* empty"),
        (f"{SUBJECTS},label,score\na,a,1,1\na,b,1,1\n", "line 3: .* contradicts"),
    ],
)
def test_mistakes_in_scores(tmp_path: Path, text: str | bytes, words: str) -> None:
    path = table(tmp_path, text)
    with pytest.raises(DatasetError, match=f"^{path}.*{words}"):
        read_scores(path)


# ---------------------------------------------------------------- names and missing values


def test_scores_join_names_in_any_form(tmp_path: Path) -> None:
    text = "subject_id_1,subject_id_2,sex_1,sex_2,score\n"
    for first, second, score in (("NFC", "NFD", 0.9), ("NFD", "NFD", 0.8)):
        forms = (unicodedata.normalize(form, "Zoë") for form in (first, second))
        text += f"{','.join(forms)},f,f,{score}\n"
    scored = read_scores(table(tmp_path, f"{text}Zoë,B,f,None,0.1\n"), groups=["sex"])
    assert scored.issame.tolist() == [True, True, False]
    assert scored.names is not None and scored.names.tolist() == ["B", "Zoë"]
    assert [side.tolist() for side in scored.groups["sex"]] == [["f"] * 3, ["f", "f", ""]]


@pytest.mark.parametrize("word", ["", "NaN", "None", "#N/A"])
def test_a_missing_score_is_a_failure_to_acquire(tmp_path: Path, word: str) -> None:
    scored = read_scores(table(tmp_path, f"label,score\n1,0.5\n0,{word}\n0,0.25\n"))
    assert np.isnan(scored.scores).tolist() == [False, True, False]
