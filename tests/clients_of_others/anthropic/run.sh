#!/usr/bin/env bash
# Tests the server in RECURVE_BIN with Anthropic's own client at its "current" or "previous" major.
#   RECURVE_BIN=build/release/bin tests/clients_of_others/anthropic/run.sh ENVIRONMENT [PYTEST_OPTIONS]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
: "${RECURVE_BIN:?the folder of recurve-server}"
RECURVE_BIN=$(cd "$RECURVE_BIN" && pwd)
environment=$1
shift
export RECURVE_BIN PYTHONDONTWRITEBYTECODE='' PYTHONPYCACHEPREFIX="$root/build/pycache"

python=$("$root/tests/environment.sh" "clients-anthropic-$environment" "$here/requirements-$environment.txt")
exec "$python" -m pytest -q -p no:cacheprovider "$@" "$here"
