#!/usr/bin/env bash
# Trains one config on all GPUs of this machine. Needs the package with a GPU build of JAX
# (pip install -e ".[train,gpu]") in the active environment.
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

exec "${PYTHON:-python}" -m ssl_jax train "$@"
