#!/usr/bin/env bash
# Pretrains SOP on photographs on a CPU and evaluates it. Needs only Python >= 3.11 and pip; creates
# its own .venv.
#
#   bash launch/quickstart.sh                    trains in runs/quickstart
#   bash launch/quickstart.sh [FOLDER] [--config.KEY=VALUE ...]
#
# Run it again to resume after a stop or a kill.

workdir=runs/quickstart # of this checkout
case "${1:-}" in
  "") [ $# = 0 ] || shift ;;
  -*) ;;
  /*) workdir="$1" && shift ;;
  *) workdir="$PWD/$1" && shift ;;
esac
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
source launch/cpu.sh

# exec: signals reach the program itself, which saves and stops at the next step.
exec python -m ssl_jax train --config=quickstart --workdir="$workdir" "$@"
