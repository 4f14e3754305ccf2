#!/usr/bin/env bash
# Trains one config on all GPUs of this machine. Needs the package with a GPU build of JAX
# (pip install -e ".[gpu]") in the active environment.
#
#   bash launch/gpu.sh --config=sop:vits16 --config.data.dir=/data/tfds --workdir=/runs/a
#
# Signals reach the program itself: it saves and ends with exit code 75, and the same command
# continues.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ $# = 0 ]; then
  echo "usage: bash launch/gpu.sh --config=NAME --workdir=FOLDER [ARGUMENTS]" >&2
  exit 2
fi
# Compiled programs are kept: a second start, and a resume, skip most of the compilation.
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$HOME/.cache/ssl_jax/xla}"

exec "${PYTHON:-python}" -m ssl_jax train "$@"
