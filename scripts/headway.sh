#!/bin/sh
# headway, from a checkout and nothing else: makes .venv on the first call, then runs `headway "$@"`.
set -eu
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd -P)
. "$root/scripts/environment.sh"
headway_environment "$root"
exec "$root/.venv/bin/headway" "$@"
