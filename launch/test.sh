#!/usr/bin/env bash
# Lints and tests the checkout; needs only Python >= 3.11 and pip, makes its own .venv.
#
#   bash launch/test.sh                        lint, then the quick tests, tier by tier
#   bash launch/test.sh --slow                 all tests that CI runs for a change
#   bash launch/test.sh --nightly              also the tests that are too expensive for that
#   bash launch/test.sh tests/ops -k sinkhorn  passes any other arguments to one pytest
#
# Tiers: lint, unit, contract, process, docs (folders of tests; unit: all others). The run stops
# after the first tier that fails, and ends with a table of tests and minutes per tier.
# SSL_JAX_TEST_WORKERS: number of test processes (default 2; 0 = this process, for a debugger).

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
  local status=$1 result="passed in"
  python -m tests.tiers "$reports"
  [ "$status" = 0 ] || result="FAILED after"
  say "$result $((SECONDS - started)) s"
  exit "$status"
}

say "lint"
ruff check --output-format concise . || finish 1
ruff format --check --quiet . || { say "run ruff format, it would change files"; finish 1; }
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
