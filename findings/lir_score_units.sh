#!/usr/bin/env bash
# lir 1.3.1's LogitCalibrator, the logistic regression of forensic practice, keeps scikit-learn's
# penalty on the slope, which depends on the unit of the scores: of the same 300 mated and 300
# non-mated pairs it makes a Cllr of 0.15 from cosines and one of 0.01 from cosines in percent, and
# the likelihood ratio of a cosine of 0.5 is 10 or more than a million. Nothing warns.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 scikit-learn==1.9.1 lir==1.3.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from importlib.metadata import version

import numpy as np
from lir.algorithms.logistic_regression import LogitCalibrator
from lir.data.models import LLRData
from lir.metrics import cllr, cllr_min

generator = np.random.default_rng(0)
scores = np.concatenate([generator.normal(0.55, 0.12, 300), generator.normal(0.02, 0.08, 300)])
labels = np.repeat([1, 0], 300)
print("lir", version("lir"), "scikit-learn", version("scikit-learn"))
found = {}
for unit, scale in {"cosines": 1, "percent": 100}.items():
    calibrator = LogitCalibrator().fit(scores * scale, labels)
    ratios = LLRData(features=calibrator.transform(scores * scale).reshape(-1, 1), labels=labels)
    found[unit] = cllr(ratios), cllr_min(ratios), float(calibrator.transform(np.array([0.5 * scale]))[0])
    cost, least, at_half = found[unit]
    print(f"{unit}: Cllr {cost:.3f}, at least {least:.3f}; a cosine of 0.5 has a likelihood ratio of 10^{at_half:.1f}")
(small, least, weak), (large, same, strong) = found["cosines"], found["percent"]
as_known = small > 8 * large and least == same and weak < 1.5 and strong > 6
sys.exit(0 if as_known else "the behaviour has changed")
PYTHON
