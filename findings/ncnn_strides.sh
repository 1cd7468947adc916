#!/usr/bin/env bash
# The Python package of ncnn 1.0.20261020 reads arrays as if they lay in one piece: a crop cut out of
# a photo by slicing gives Mat.from_pixels() other pixels, skewed rows of the photo, and Mat() of a
# picture with its axes moved (channels first) holds the numbers in the old order under the new
# shape. Neither says anything; a copy by numpy.ascontiguousarray cures both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 ncnn==1.0.20261020
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import ncnn
import numpy as np

photo = np.random.default_rng(0).integers(0, 256, (200, 160, 3)).astype(np.uint8)
crop = photo[20:132, 10:122]
channels_first = crop.astype(np.float32).transpose(2, 0, 1)
bgr = ncnn.Mat.PixelType.PIXEL_BGR


def from_pixels(pixels):
    return np.array(ncnn.Mat.from_pixels(pixels, bgr, 112, 112))


found = {
    "from_pixels(crop)": from_pixels(crop),
    "from_pixels(copy of crop)": from_pixels(np.ascontiguousarray(crop)),
    "Mat(channels first)": np.array(ncnn.Mat(channels_first)),
    "Mat(copy of channels first)": np.array(ncnn.Mat(np.ascontiguousarray(channels_first))),
}
print("ncnn", ncnn.__version__)
right = [np.array_equal(mat, channels_first) for mat in found.values()]
for name, mat in found.items():
    print(f"{name}: shape {mat.shape}, {np.mean(mat != channels_first):.1%} of the values are other ones")
sys.exit(0 if right == [False, True, False, True] else "the behaviour has changed")
PYTHON
