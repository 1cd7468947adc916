from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from facerec.errors import DatasetError
from facerec.fairness.attributes import Attributes, read_attributes
from facerec.fairness.quality import DEFAULT, add_quality, read_quality

HEADER = (
    "Filename;UnifiedQualityScore;Sharpness;UnifiedQualityScore.scalar;Sharpness.scalar;"
    "assessment_time_in_ms"
)


def write(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "ofiq.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def attributes(folder: Path) -> Attributes:
    path = folder / "A.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", "subject_id", "race", "yaw", "label_source"])
        for image in ("Ann/1.jpg", "Ann/2.jpg", "Bob/1.jpg", "1.jpg"):
            writer.writerow([image, image[:3], "A", 3, "made up"])
    return read_attributes(path, ["race"], covariates=["yaw"])


def test_measures_join_by_the_end_of_their_path(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "/photos/Ann/1.jpg;21.5;0.2;43;50;812",
        r"C:\photos\Bob\1.jpg;25;0.4;61;70;799",
        "1.jpg;19;0;-1;-1;3",  # no face: nothing was taken
        "/photos/Cid/9.jpg;20;0.1;40;11;700",
    )
    quality = read_quality(path, ["yaw", "UnifiedQualityScore", DEFAULT, "Sharpness"])
    joined = add_quality(attributes(tmp_path), quality)
    assert list(joined.covariates) == ["yaw", "UnifiedQualityScore", DEFAULT, "Sharpness"]
    nan = np.nan
    np.testing.assert_array_equal(joined.covariates[DEFAULT], [43, nan, 61, nan])
    np.testing.assert_array_equal(joined.covariates["UnifiedQualityScore"], [21.5, nan, 25, nan])
    np.testing.assert_array_equal(joined.covariates["Sharpness"], [0.2, nan, 0.4, nan])
    np.testing.assert_array_equal(joined.covariates["yaw"], [3, 3, 3, 3])
    assert quality.remark is not None and "MagFace" in quality.remark


def test_the_unified_score_is_the_default_and_others_have_no_remark(tmp_path: Path) -> None:
    path = write(tmp_path, "Ann/1.jpg;21.5;0.2;43;50;812")
    assert list(read_quality(path, ["yaw"]).measures) == [DEFAULT]
    other = read_quality(path, ["Sharpness.scalar"])
    assert other.remark is None and other.measures["Sharpness.scalar"].tolist() == [50]
    # Some versions of the format mark raw values by a suffix.
    path = write(tmp_path, "Ann/1.jpg;0;-1", header="Filename;Pose.raw;Pose.scalar")
    assert np.isnan(read_quality(path, ["Pose.raw"]).measures["Pose.raw"]).all()


@pytest.mark.parametrize(
    ("lines", "header", "token"),
    [
        (["a|1"], "Filename|UnifiedQualityScore.scalar", "semicolons"),
        ([], HEADER, "no line"),
        (["a;1"], "Filename;Sharpness", DEFAULT),
        (["Ann/1.jpg;1;2"], HEADER, "line 2"),
        (["Ann/1.jpg;1;2;x;3;4"], HEADER, "'x'"),
        (["Dan/7.jpg;1;2;3;4;5"], HEADER, "Dan/7.jpg"),
        (["Ann/1.jpg;1;2;3;4;5", "x/Ann/1.jpg;1;2;9;4;5"], HEADER, "two lines"),
    ],
)
def test_what_is_no_such_table_is_refused(
    tmp_path: Path, lines: list[str], header: str, token: str
) -> None:
    with pytest.raises(DatasetError, match=token):
        add_quality(attributes(tmp_path), read_quality(write(tmp_path, *lines, header=header)))


def test_a_column_of_both_files_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "Ann/1.jpg;3", header="Filename;yaw")
    with pytest.raises(DatasetError, match="yaw"):
        add_quality(attributes(tmp_path), read_quality(path, ["yaw"]))
