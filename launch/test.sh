#!/usr/bin/env bash
# Lints and tests the checkout; needs only Python >= 3.11 and pip, makes its own .venv.
#
#   bash launch/test.sh                        the quick tests
#   bash launch/test.sh --slow                 all tests: what CI runs
#   bash launch/test.sh tests/ops -k sinkhorn  further arguments go to pytest
#
# SSL_JAX_TEST_WORKERS: parallel test processes (default 2; 0 = in this process, for a debugger).

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

select=(-m "not slow")
arguments=()
for argument in "$@"; do
  if [ "$argument" = --slow ]; then select=(); else arguments+=("$argument"); fi
done

started=$SECONDS
status=0
# and on after a failure: one run shows everything that is wrong
ruff check --output-format concise . || status=$?
ruff format --check --quiet . || { status=$?; say "ruff format would change files; run it"; }
mypy --no-error-summary || status=$?
# The "+" forms: bash 3.2 (macOS) takes an empty array for an unset variable.
python -m pytest -q -n "${SSL_JAX_TEST_WORKERS:-2}" --dist worksteal \
  --durations 40 --durations-min 5 \
  ${select[@]+"${select[@]}"} ${arguments[@]+"${arguments[@]}"} || status=$?
say "$((SECONDS - started)) s$([ "$status" = 0 ] || echo ', FAILED')"
exit "$status"
