#!/usr/bin/env bash
# Pretrains SOP on pictures of handwritten digits on a CPU and evaluates it; needs only Python >= 3.11 and pip, makes its own .venv.
#
#   bash launch/quickstart.sh                    results in runs/quickstart
#   bash launch/quickstart.sh FOLDER [--config.KEY=VALUE ...]
#
# Started again, it continues where it stopped, also after a kill.

workdir="${1:-}"
case "$workdir" in "" | /*) ;; *) workdir="$PWD/$workdir" ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}" # requirements.lock holds the CPU build of JAX

# XLA on a CPU allocates its work space anew at every step, and the page faults cost a quarter of the time. With glibc, let it keep its
# memory and use huge pages.
if getconf GNU_LIBC_VERSION >/dev/null 2>&1; then
  export GLIBC_TUNABLES="${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}"
  export MALLOC_MMAP_MAX_="${MALLOC_MMAP_MAX_:-0}"
  export MALLOC_TRIM_THRESHOLD_="${MALLOC_TRIM_THRESHOLD_:-100000000000}"
  export MALLOC_TOP_PAD_="${MALLOC_TOP_PAD_:-268435456}"
fi

# exec: signals reach the program itself, which saves and stops at the next step.
exec python -m ssl_jax train --config=configs/quickstart.py --workdir="${workdir:-runs/quickstart}" "${@:2}"
