#!/usr/bin/env bash
# How well images are rebuilt from r = 1, 2, 4, 8, 16 sparse tokens, beside a dense MAE (STELLAR
# figure 2c and table 3, small): trains the networks, then a new decoder of one shape on each.
#
#   bash launch/reconstruct_sweep.sh                          all r, seed 0, two runs at a time
#   bash launch/reconstruct_sweep.sh --tokens 1,4 --seeds 0,1   a part of it
#
# About an hour on 2 cores. Started again, it continues where it stopped, also after a kill; runs of
# launch/compare.sh and launch/claims.sh are used. Further arguments: python
# launch/reconstruct_sweep.py --help

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source launch/cpu.sh

exec python launch/reconstruct_sweep.py --jobs 2 "$@"
