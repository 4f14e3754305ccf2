#!/usr/bin/env bash
# Tries what the papers claim with small networks: trains the variants, two seeds each, prints the
# rows of a claim as its runs end, then the table; needs only Python >= 3.11 and pip.
#
#   bash launch/claims.sh                    all claims, seeds 0 1, two runs at a time
#   bash launch/claims.sh --claims sop-anchors --seeds 0,1,2   a part of it
#
# About five hours on 2 cores for all 60 runs, three of them for STELLAR's 20. Started again, it
# continues where it stopped, also after a kill; runs of launch/compare.sh are used. Further
# arguments: python launch/claims.py --help

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source launch/cpu.sh

exec python launch/claims.py --jobs 2 "$@"
