#!/usr/bin/env bash
# Tests what deploy/ builds and configures, of the programs in RECURVE_BIN, in a separate environment.
#   RECURVE_BIN=build/release/bin tests/deploy/run.sh [PYTEST_OPTIONS]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
: "${RECURVE_BIN:?the folder of recurve-server}"
RECURVE_BIN=$(cd "$RECURVE_BIN" && pwd)
export RECURVE_BIN PYTHONDONTWRITEBYTECODE='' PYTHONPYCACHEPREFIX="$root/build/pycache"

python=$("$root/tests/environment.sh" deploy "$here/requirements.txt")
exec "$python" -m pytest -q -p no:cacheprovider "$@" "$here"
