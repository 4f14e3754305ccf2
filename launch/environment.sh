# shellcheck shell=bash
# Sourced by the scripts beside it: makes or repairs the checkout's .venv and activates it.
#
# Needs bash, a Python of at least 3.11 and its pip. Sets: ROOT (the checkout, also the working
# directory afterwards), PATH with .venv first, JAX's compilation cache in .cache/xla.
# PYTHON=/path/to/python chooses the interpreter.
# A .venv that these scripts made is rebuilt when its installation was cut off, or requirements.lock,
# setup.py, the interpreter or the checkout's path changes. Nothing is deleted of any other .venv: it
# is completed in place if its bin/python is supported, else left alone, and named.

set -euo pipefail

unset CDPATH # with it, cd prints the folder, or enters another one
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
VENV="$ROOT/.venv"
OURS="$VENV/ssl_jax_created" # written first: only a folder that has it may be emptied
STAMP="$VENV/ssl_jax_environment" # written last: present means complete
THEIRS="$VENV/ssl_jax_completed" # in a folder of somebody else's that was completed

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

# supported PYTHON [LAST_MINOR]: is it a Python 3.11 or newer, up to 3.LAST_MINOR?
supported() {
  local check="import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, ${2:-99}))"
  "$1" -c "$check" >/dev/null 2>&1
}

# Prints a suitable interpreter, preferring the versions that requirements.lock was tested with.
find_python() {
  local last candidate candidates=(python3 python python3.13 python3.12 python3.11)
  if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
  for last in 13 99; do
    for candidate in "${candidates[@]}"; do
      if supported "$candidate" "$last"; then
        "$candidate" -c 'import sys; print(sys.executable)'
        return
      fi
    done
  done
  say "Python 3.11 or newer is required (tested: 3.11 to 3.13), but not found as" \
    "${candidates[*]}; name one with PYTHON=/path/to/python"
  return 1
}

# fingerprint PYTHON: prints what the environment depends on, as one hash.
fingerprint() {
  "$1" - "$ROOT" <<'PY'
import hashlib, pathlib, sys

root = pathlib.Path(sys.argv[1])
files = [(root / name).read_bytes() for name in ("requirements.lock", "setup.py")]
parts = [str(root).encode(), sys.version.encode(), *files]
print(hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest())
PY
}

# create_venv PYTHON: also where Python came without ensurepip (Debian without python3-venv),
# through that Python's own pip. The mark stays while an older one of ours is emptied.
create_venv() {
  mkdir -p "$VENV"
  : >"$OURS"
  find "$VENV/" -mindepth 1 -maxdepth 1 ! -name "$(basename "$OURS")" -exec rm -rf {} +
  if "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    "$1" -m venv "$VENV"
  elif "$1" -m pip --version >/dev/null 2>&1; then
    "$1" -m venv --without-pip "$VENV"
    "$1" -m pip --python "$VENV/bin/python" install --quiet pip
  else
    say "$1 has neither ensurepip nor pip; install one of them (Debian: apt install python3-venv)"
    return 1
  fi
}

# The build backend first and from the lock, so that nothing that has to be built takes an unpinned
# one from the network; built the same way (PEP 517) by every pip.
install_packages() {
  local pip=(env PIP_USE_PEP517=1 "$VENV/bin/python" -m pip
    --disable-pip-version-check --quiet --require-virtualenv install)
  "${pip[@]}" "$(grep -o '^setuptools==[^ ]*' requirements.lock)"
  "${pip[@]}" --no-build-isolation --requirement requirements.lock
  "${pip[@]}" --no-build-isolation --no-deps --editable .
}

# up_to_date: is .venv complete and made for this lock, this place and (if PYTHON names one) this
# interpreter?
up_to_date() {
  [ -f "$STAMP" ] && supported "$VENV/bin/python" &&
    [ "$(cat "$STAMP")" = "$(fingerprint "${PYTHON:-$VENV/bin/python}" 2>/dev/null)" ]
}

# ours: is .venv made by these scripts, or not there? Their earlier versions left no mark, but Python
# notes the command, and theirs was with --clear.
ours() {
  [ -f "$OURS" ] || { [ ! -e "$VENV" ] && [ ! -L "$VENV" ]; } ||
    { [ -f "$STAMP" ] && [ ! -f "$THEIRS" ] &&
      grep -q "^command = .* --clear .*/\.venv$" "$VENV/pyvenv.cfg" 2>/dev/null; }
}

prepare_environment() {
  local python
  if up_to_date; then return; fi
  python="$(find_python)"
  if ! ours && ! supported "$VENV/bin/python"; then
    say "$VENV was not created by this script and has no Python of at least 3.11; move it away"
    return 1
  fi
  if ! ours && [ -n "${PYTHON:-}" ] &&
    [ "$(fingerprint "$python")" != "$(fingerprint "$VENV/bin/python")" ]; then
    say "$VENV was not created by this script and has another Python than PYTHON=$PYTHON; move it away"
    return 1
  fi
  say "installing the packages of requirements.lock into .venv (takes a few minutes once)"
  if ours; then create_venv "$python"; else : >"$THEIRS"; fi
  rm -f "$STAMP"
  install_packages
  fingerprint "$VENV/bin/python" >"$STAMP"
}

prepare_environment
export VIRTUAL_ENV="$VENV" PATH="$VENV/bin:$PATH"
unset PYTHONHOME
# Compiled programs are kept: a second start, and a resume, skip most of the compilation.
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$ROOT/.cache/xla}"
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="${JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS:-0}"
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="${JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES:--1}"
