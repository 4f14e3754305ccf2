#!/usr/bin/env bash
# Trains SOP, STELLAR, CrIBo and DINO on CIFAR-10 and Imagenette on a CPU, an hour each; leaves a
# table, curves of score against minutes, pictures and weights. Needs only Python >= 3.11 and pip,
# and both sets prepared for TFDS (cifar10, imagenette96).
#
#   bash launch/real_sets.sh /data/tfds                      results in runs/real_sets
#   bash launch/real_sets.sh /data/tfds --minutes 60 --methods sop --sets cifar10
#
# Started again, it continues where it stopped, also after a kill. Further arguments:
# python launch/real_sets.py --help

if [ $# = 0 ]; then
  echo "usage: bash launch/real_sets.sh FOLDER_OF_TFDS_SETS [ARGUMENTS]" >&2
  exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source launch/cpu.sh

exec python launch/real_sets.py --data "$1" --methods sop,stellar,cribo,dino --minutes 480 "${@:2}"
