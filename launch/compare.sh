#!/usr/bin/env bash
# Trains every method with the same network and images, three seeds each, and prints one table;
# needs only Python >= 3.11 and pip.
#
#   bash launch/compare.sh                                  all methods, seeds 0 1 2, runs/compare
#   bash launch/compare.sh --methods sop,dino --seeds 0     a part of it
#
# Started again, it continues where it stopped, also after a kill. Further arguments:
# python launch/compare.py --help

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source launch/cpu.sh

exec python launch/compare.py "$@"
