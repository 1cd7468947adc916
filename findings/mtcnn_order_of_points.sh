#!/usr/bin/env bash
# mtcnn 1.0.0 returns the five points of a face by name, in an order that no aligner takes: nose,
# mouth_right, right_eye, left_eye, mouth_left, and in whole pixels. An array of the values as they
# come is a face with the nose for an eye, for which a similarity transform finds a crop without an
# error: there the five points lie far from their places, which they nearly reach in the right order.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 scikit-image==0.26.0 mtcnn==1.0.0 \
    joblib==1.6.0 lz4==4.4.5 tensorflow==2.21.0
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES='' "$folder/venv/bin/python" 2>errors - <<'PYTHON' || { tail -3 errors; exit 1; }
import sys
from importlib.metadata import version

import numpy as np
from mtcnn import MTCNN
from skimage import data
from skimage.transform import SimilarityTransform

photo = data.astronaut()  # a picture of NASA, in the public domain
names = ["left_eye", "right_eye", "nose", "mouth_left", "mouth_right"]
template = np.array([[38.29, 51.70], [73.53, 51.50], [56.03, 71.74], [41.55, 92.37], [70.73, 92.20]])
face = MTCNN(device="CPU:0").detect_faces(photo)[0]["keypoints"]
print("mtcnn", version("mtcnn"), "points come as", *face)
off = {}
for what, order in {"as they come": list(face), "eyes first": names}.items():
    points = np.array([face[name] for name in order], float)
    transform = SimilarityTransform.from_estimate(points, template)
    off[what] = float(np.linalg.norm(transform(points) - template, axis=1).mean())
    print(f"{what}: the points lie {off[what]:.1f} pixels of a crop of 112 beside the template")
whole = all(isinstance(number, np.integer) for point in face.values() for number in point)
as_known = list(face) != names and sorted(face) == sorted(names) and whole
as_known = as_known and face["left_eye"][0] < face["right_eye"][0]  # the viewer's left
as_known = as_known and off["as they come"] > 12 > 5 > off["eyes first"]
sys.exit(0 if as_known else "the behaviour has changed")
PYTHON
