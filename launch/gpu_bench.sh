#!/usr/bin/env bash
# Times the train step of every method on the GPUs of this machine, with the papers' settings
# (ViT-S/16; MAE and STELLAR ViT-B/16), and DINO's beside the same step in PyTorch, eager and
# compiled, if torch is installed. Needs the package with a GPU build of JAX (pip install -e
# ".[train,gpu]") in the active environment, and no data: the pictures come with the package. At most
# 40 minutes; tables in runs/bench.
#
#   bash launch/gpu_bench.sh                 64 images a GPU
#   BATCH=128 bash launch/gpu_bench.sh
#   BATCH=2 CONFIGS=dino:vits16 bash launch/gpu_bench.sh --rounds 1     a rehearsal on a CPU

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python}"
small=dino:vits16,ibot:vits16,dinov2:vits16,massl:vits16,sop:vits16,sove:vits16,flsl:vits16
configs="${CONFIGS:-$small,cribo:vits16_in1k,mae:vitb16,stellar:vitb16}"
devices="$("$python" -c 'import jax; print(jax.device_count())')"
batch=$((${BATCH:-64} * devices))
# Two programs take turns on the machine: neither may take all of the memory.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$HOME/.cache/ssl_jax/xla}"

timeout 1800 "$python" launch/bench.py steps --configs "$configs" --batch "$batch" "$@"
if "$python" -c 'import torch' 2>/dev/null; then
  timeout 600 "$python" launch/bench_torch.py --batch "${BATCH:-64}"
else
  echo "torch is not installed: no comparison with PyTorch"
fi
