#!/usr/bin/env bash
# OpenCV 4.14 and 5.0 cut different face crops out of the same photo with the same five points:
# the documented formula of warpAffine with linear interpolation is what 5.0 computes, rounded once,
# while 4.14 first rounds where it samples to 1/32 of a pixel. A network then sees other pixels.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/warp.py" <<'PYTHON'
import sys

import cv2
import numpy as np

photo = np.random.default_rng(0).integers(0, 256, (300, 260, 3)).astype(np.uint8)
photo = cv2.normalize(cv2.GaussianBlur(photo, (0, 0), 1), None, 0, 255, cv2.NORM_MINMAX)
turn, scale = np.deg2rad(7.3), 0.55
cosine, sine = scale * np.cos(turn), scale * np.sin(turn)
matrix = np.array([[cosine, -sine, -13.37], [sine, cosine, -21.91]])
crop = cv2.warpAffine(photo, matrix, (112, 112), flags=cv2.INTER_LINEAR)

back = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))
y, x = np.mgrid[:112, :112]
across, down = back[0, 0] * x + back[0, 1] * y + back[0, 2], back[1, 0] * x + back[1, 1] * y + back[1, 2]
left, top = np.floor(across).astype(int), np.floor(down).astype(int)
right, low = (across - left)[..., None], (down - top)[..., None]
assert left.min() >= 0 and top.min() >= 0 and left.max() < 259 and top.max() < 299


def at(dy, dx):
    return photo[top + dy, left + dx].astype(float)


exact = (1 - low) * ((1 - right) * at(0, 0) + right * at(0, 1))
exact += low * ((1 - right) * at(1, 0) + right * at(1, 1))
away = np.abs(crop - exact)
other = (crop != np.rint(exact)).mean()
print(f"OpenCV {cv2.__version__}: {other:.1%} of values differ from the formula, rounded; at most {away.max():.2f} away")
rounded_once = away.max() <= 0.501
sys.exit(0 if rounded_once == (sys.argv[1] == "exact") else "the behaviour has changed")
PYTHON
for case in "4.14.0.94 coarse" "5.0.0.93 exact"; do
    read -r version expected <<<"$case"
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/python" -m pip install --quiet numpy==2.4.6 "opencv-python-headless==$version"
    "$folder/$version/bin/python" "$folder/warp.py" "$expected"
done
