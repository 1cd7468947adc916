"""Write the list ``images.csv`` of a retrieval set, with which ``facerec compare`` reads it.

    python examples/retrieval_sets.py cars196 data/CARS196
    facerec compare papers/reality_check_photos --data data/CARS196

Sets are cub (CUB-200-2011), cars196 (of which the training half alone will do: its figures are then
not those of published tables), sop (Stanford Online Products) and inshop (In-Shop Clothes
Retrieval), each in the folder as it is unpacked.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from scipy.io import loadmat


def cub(root: Path) -> pd.DataFrame:
    """Return CUB-200-2011."""
    images, labels, classes = (
        pd.read_csv(root / f"{name}.txt", sep=" ", header=None, index_col=0)[1]
        for name in ("images", "image_class_labels", "classes")
    )
    return pd.DataFrame({"path": "images/" + images, "class": labels.map(classes)})


def cars196(root: Path) -> pd.DataFrame:
    """Return Cars196, as one list or as the devkit's."""
    lists = {
        "cars_annos.mat": ("relative_im_path", ""),
        "cars_train_annos.mat": ("fname", "cars_train/"),
        "cars_test_annos_withlabels.mat": ("fname", "cars_test/"),
    }
    found = [
        (file, *lists[file.name]) for file in sorted(root.rglob("*.mat")) if file.name in lists
    ]
    if found[0][0].name != "cars_annos.mat":
        found.reverse()  # training comes first
    rows = [
        (folder + getattr(row, column), getattr(row, "class"))
        for file, column, folder in found
        for row in loadmat(file, squeeze_me=True, struct_as_record=False)["annotations"]
    ]
    return pd.DataFrame(rows, columns=["path", "class"])


def sop(root: Path) -> pd.DataFrame:
    """Return Stanford Online Products."""
    parts = {part: pd.read_csv(root / f"Ebay_{part}.txt", sep=" ") for part in ("train", "test")}
    whole = pd.concat(frame.assign(part=part) for part, frame in parts.items())
    return whole.rename(columns={"class_id": "class"})[["path", "class", "part"]]


def inshop(root: Path) -> pd.DataFrame:
    """Return In-Shop Clothes Retrieval."""
    file = next(root.rglob("list_eval_partition.txt"))
    frame = pd.read_csv(file, sep=r"\s+", skiprows=1)
    frame.columns = ["path", "class", "part"]
    folder = "Img/" if (root / "Img" / "img").is_dir() else ""
    return frame.assign(path=folder + frame["path"])


if __name__ == "__main__":
    kind, folder = sys.argv[1], Path(sys.argv[2])
    table = {"cub": cub, "cars196": cars196, "sop": sop, "inshop": inshop}[kind](folder)
    table.to_csv(folder / "images.csv", index=False)
    print(f"{folder / 'images.csv'}: {len(table):,} images of {table['class'].nunique():,} classes")
