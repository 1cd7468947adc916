#!/usr/bin/env bash
# Hugging Face datasets 5.2.0 reads a folder of people ("imagefolder") by words in the names: if one
# person's folder is called val_lee or dev, or one photo ends in _test, that is taken as a split, all
# other pictures are left out, and with one folder left there is no column of labels. In a folder of
# people with frontal and profile photos apart, as CFP has them, the label is "frontal" or
# "profile". Nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 pillow==12.0.0 datasets==5.2.0
cd "$folder"
HF_HOME="$folder/home" HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import sys
from pathlib import Path

import datasets
from PIL import Image

datasets.disable_progress_bars()
plain = [f"{person}/{number}.jpg" for person in ("ann", "bob", "eve") for number in range(3)]
poses = [f"{person}/{pose}/{i}.jpg" for person in ("ann", "bob") for pose in ("frontal", "profile") for i in (1, 2)]
cases = {
    "three people": plain,
    "a fourth is val_lee": [*plain, "val_lee/0.jpg", "val_lee/1.jpg"],
    "a photo is 0_test.jpg": [*plain, "ann/0_test.jpg"],
    "two people in poses": poses,
}
print("datasets", datasets.__version__)
found = {}
for case, names in cases.items():
    root = Path(case)
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(root / name)
    splits = datasets.load_dataset("imagefolder", data_dir=str(root.resolve()))
    found[case] = {
        split: (len(rows), rows.features["label"].names if "label" in rows.features else None)
        for split, rows in splits.items()
    }
    print(f"{case}, {len(names)} pictures:", found[case])
expected = {
    "three people": {"train": (9, ["ann", "bob", "eve"])},
    "a fourth is val_lee": {"validation": (2, None)},
    "a photo is 0_test.jpg": {"test": (1, None)},
    "two people in poses": {"train": (8, ["frontal", "profile"])},
}
sys.exit(0 if found == expected else "the behaviour has changed")
PYTHON
