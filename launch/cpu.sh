# shellcheck shell=bash
# Sourced by the scripts that train on a CPU.

export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}" # requirements.lock holds the CPU build of JAX

# XLA on a CPU allocates its work space anew at every step, and the page faults cost a quarter of
# the time. With glibc, let it keep its memory and use huge pages.
if getconf GNU_LIBC_VERSION >/dev/null 2>&1; then
  export GLIBC_TUNABLES="${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}"
  export MALLOC_MMAP_MAX_="${MALLOC_MMAP_MAX_:-0}"
  export MALLOC_TRIM_THRESHOLD_="${MALLOC_TRIM_THRESHOLD_:-100000000000}"
  export MALLOC_TOP_PAD_="${MALLOC_TOP_PAD_:-268435456}"
fi
