#!/usr/bin/env bash
# Measures facerec on a bare machine with one GPU in ten minutes: versions, tests/cuda, rates, iResNet-50 and
# -100 beside the plain loop, the heads, a training on real faces with its LFW figure, then the
# loader and settings of the compiler.
#
#   OUT=results bash .carry/measure.sh [FOLDER OF FACEREC]
#
# It lies in a folder .carry with whl/*.whl (simplejpeg, tyro, typeguard, docstring-parser),
# data/cfp_train (train.rec, train.idx, property), data/lfw/lfw.bin and, where an earlier run left one,
# compiled.bin with what the compiler made. TOTAL: seconds in all; TOY=--toy: a trial on a CPU.
F=${1:-.}; C=$PWD/.carry; S=${SITE:-$(mktemp -d)}; R=$(mktemp -d); T=${TOTAL:-580}
cores=$(nproc); export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores < 8 ? cores : 8))}
: "${OUT:?set OUT to an empty folder}"
if [ -z "${TOY:-}" ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$S" "$C"/whl/*.whl
fi
cd "$F" || exit 1; export PYTHONPATH=$PWD:$S
left() { awk -v l=$((T - SECONDS - $1)) 'BEGIN{printf "%.2f", (l > 0 ? l : 0)/60}'; }
say() { echo "=== $* at $SECONDS s"; }
bench() { # FILE SECONDS_KEPT MEASURES…
  timeout $((T - SECONDS)) python3 benchmarks/run.py "${@:3}" --minutes "$(left "$2")" --json "$OUT/$1.json" \
    --compiled "$OUT/compiled.bin" ${TOY:-} 2>&1 | tee "$OUT/$1.log"
}
if [ -f "$C/compiled.bin" ]; then cp "$C/compiled.bin" "$OUT/"; fi
say versions; nvidia-smi -L; df -h /dev/shm | tail -1; nproc
python3 -c 'import torch,triton,numpy,cv2,simplejpeg,tyro,rich,safetensors
print(torch.__version__,triton.__version__,numpy.__version__,cv2.__version__,torch.cuda.is_available())'
say tests
timeout "${TESTS:-110}" python3 -m pytest -v -n "${N:-8}" -p no:cacheprovider --confcutdir=tests/cuda tests/cuda \
  ${PICK:-} 2>&1 | tee "$OUT/tests.log" | tail -25
say bench1; bench gpu1 "${REST:-150}" gpu_rates gpu_training gpu_heads
say train
timeout "${TRAIN:-90}" python3 -m facerec train recipes/cfp_small.py --data.path "$C/data/cfp_train" \
  --backbone.width "${WIDTH:-1}" --batch-size "${B:-256}" --epochs "${EPOCHS:-40}" --workers "${WORKERS:-12}" \
  --runs "$R" --validation.benches lfw --validation.data "$C/data/lfw" --validation.every-epochs 1000 \
  --checkpoints.every-steps 100000 ${STEPS:-} 2>&1 | tee "$OUT/train.log"
cp "$R"/*/metrics.jsonl "$OUT/" 2>/dev/null
say bench2; bench gpu2 8 gpu_loader gpu_settings
say end
