#!/bin/sh
# The one test command: makes .venv if needed, then lints, checks types and floors, and runs pytest "$@".
# Every check runs, whatever fails before it; the exit code is 0 only if all pass.
set -eu
case "${1-}" in
-h | --help)
    cat <<'END'
usage: sh scripts/test.sh [PYTEST ARGUMENTS]

Makes .venv if needed (HEADWAY_PYTHON names the Python for it; packages come from the index that pip uses), then checks
format, lint, types and import rules, and runs the tests. Every check runs; the exit code is 0 only if all pass.

  sh scripts/test.sh                        everything, some minutes
  sh scripts/test.sh tests/memory -k mla    what follows goes to pytest, whose own help is .venv/bin/pytest --help
  sh scripts/test.sh tests/memory -n 0      in one process, not one a core
END
    exit 0
    ;;
esac
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd -P)
. "$root/scripts/environment.sh"
headway_environment "$root"
cd -- "$root"
bin=$root/.venv/bin
failed=
step() {
    name=$1
    shift
    echo "== $name"
    "$@" || failed="$failed $name"
}
step format "$bin/ruff" format --check .
step lint "$bin/ruff" check .
step types "$bin/mypy"
step floors "$bin/lint-imports" --no-logo
# Neighbouring tests stay in one process, which has compiled what they share; -n 0 after it runs all in this one.
step tests "$bin/pytest" -n auto --maxprocesses 4 --dist worksteal "$@"
if [ -n "$failed" ]; then
    echo "failed:$failed" >&2
    exit 1
fi
