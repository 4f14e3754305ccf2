#!/usr/bin/env bash
# Trains SOP on CIFAR-10 and Imagenette for an hour of 2 CPU cores each, or for ten minutes of one
# GPU; leaves a table, curves of score against minutes, pictures and weights.
#
#   bash launch/speedrun.sh cpu                         on photographs that come with the packages
#   bash launch/speedrun.sh cpu --data /data/tfds       on the sets (cifar10, imagenette/160px-v2) in there
#   bash launch/speedrun.sh gpu --data /data/tfds --methods sop,dino --sets cifar10
#
# cpu needs only Python >= 3.11 and pip, and makes its own .venv; gpu needs the package with a GPU
# build of JAX (pip install -e ".[train,gpu]") in the active environment. Started again, it continues
# where it stopped, also after a kill; without --workdir, runs are in runs/speedrun of the checkout.
# Further arguments: --help after cpu or gpu.

set -euo pipefail
unset CDPATH
caller="$PWD" # relative folders are this one's
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in
  cpu)
    source launch/environment.sh
    source launch/cpu.sh
    export NPROC=2 # XLA's threads: with as many, one core or sixteen give the same bits
    PYTHON=python
    ;;
  gpu) ;;
  *)
    echo "usage: bash launch/speedrun.sh cpu|gpu [ARGUMENTS]" >&2
    exit 2
    ;;
esac

export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
cd "$caller"
# -P: modules are those of the checkout, not of the caller's folder.
exec "${PYTHON:-python}" -P -m launch.speedrun "$@"
