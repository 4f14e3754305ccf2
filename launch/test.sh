#!/usr/bin/env bash
# Lints and tests the checkout; needs only Python >= 3.11 and pip, makes its own .venv.
#
#   bash launch/test.sh                        lint, then the quick tests, tier by tier
#   bash launch/test.sh --slow                 all tests of a change: what CI runs
#   bash launch/test.sh --nightly              also what is too dear for every change
#   bash launch/test.sh tests/ops -k sinkhorn  any other arguments go to one pytest
#
# Tiers: lint, unit, contract, process, docs (folders of tests; unit: all others). A tier that fails ends the run. At
# the end stands a table of their tests and minutes. SSL_JAX_TEST_WORKERS: parallel test processes
# (default 2; 0 = in this process, for a debugger).

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

select=(-m "not slow and not nightly")
arguments=()
for argument in "$@"; do
  case "$argument" in
    --slow) select=(-m "not nightly") SSL_JAX_TEST_PROFILE=ci ;;
    --nightly) select=() SSL_JAX_TEST_PROFILE=nightly ;;
    *) arguments+=("$argument") ;;
  esac
done
export SSL_JAX_TEST_PROFILE="${SSL_JAX_TEST_PROFILE:-quick}"

reports="$ROOT/.cache/tests"
rm -rf "$reports"
mkdir -p "$reports"
started=$SECONDS

# The "+" forms: bash 3.2 (macOS) takes an empty array for an unset variable.
run() {
  python -m pytest -q -n "${SSL_JAX_TEST_WORKERS:-2}" ${select[@]+"${select[@]}"} "$@"
}

finish() {
  local status=$1
  python -m tests.tiers "$reports" || [ "$status" != 0 ] || status=1
  say "$((SECONDS - started)) s$([ "$status" = 0 ] || echo ', FAILED')"
  exit "$status"
}

say "lint"
ruff check --output-format concise . || finish 1
ruff format --check --quiet . || { say "ruff format would change files; run it"; finish 1; }
mypy --no-error-summary || finish 1

if [ "${#arguments[@]}" -gt 0 ]; then
  status=0
  run --dist loadgroup --junitxml="$reports/chosen.xml" "${arguments[@]}" || status=$?
  finish "$status"
fi

# How tests are spread over processes: a file stays together, so that its traces are made once; in
# the contract, what belongs to one method does.
for tier in unit contract process docs; do
  say "$tier"
  options=("tests/$tier" --dist loadfile)
  case "$tier" in
    unit)
      options=(tests ssl_jax/ops ssl_jax/losses --dist loadfile)
      options+=(--ignore=tests/contract --ignore=tests/process --ignore=tests/docs)
      ;;
    contract) options=(tests/contract --dist loadgroup) ;;
    process) options=(tests/process --dist load) ;;
  esac
  status=0
  run "${options[@]}" --junitxml="$reports/$tier.xml" || status=$?
  # What waits for processes and signals may be late on a busy machine: once more. The table names
  # what failed before.
  if [ "$tier" = process ] && [ "$status" = 1 ]; then
    mv "$reports/process.xml" "$reports/process-first.xml"
    status=0
    run "${options[@]}" --last-failed --last-failed-no-failures none \
      --junitxml="$reports/process-again.xml" || status=$?
  fi
  [ "$status" = 0 ] || finish 1
done
finish 0
