#!/usr/bin/env bash
# Trains every method on CIFAR-10 and Imagenette on one GPU, four at a time, as one does not keep it
# busy, in 40 minutes and those that compiling takes; leaves a table, curves, pictures and weights.
# Needs the package with a GPU build of JAX (pip install -e ".[train,gpu]") in the active
# environment, and both sets prepared for TFDS (cifar10, imagenette96).
#
#   bash launch/gpu_results.sh /data/tfds                      results in runs/gpu
#   bash launch/gpu_results.sh /data/tfds --minutes 20 --methods sop,dino
#   bash launch/gpu_results.sh /data/tfds --steps 5000 --jobs 8      runs beside each other
#
# Started again, it continues where it stopped, also after a kill. Further arguments:
# python launch/real_sets.py --help

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ $# = 0 ]; then
  echo "usage: bash launch/gpu_results.sh FOLDER_OF_TFDS_SETS [ARGUMENTS]" >&2
  exit 2
fi
# The script times steps itself before it starts the runs: neither may take all of the memory.
export XLA_PYTHON_CLIENT_PREALLOCATE=false

exec "${PYTHON:-python}" launch/real_sets.py --data "$1" --workdir runs/gpu --jobs 4 "${@:2}"
