#!/usr/bin/env bash
# Tests the client of object stores with stores of others, in a separate environment.
#   RECURVE_BIN=build/release/bin tests/server/object_store/run.sh [PYTEST_OPTIONS]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
: "${RECURVE_BIN:?the folder of object_stores}"
RECURVE_BIN=$(cd "$RECURVE_BIN" && pwd)
export RECURVE_BIN PYTHONDONTWRITEBYTECODE='' PYTHONPYCACHEPREFIX="$root/build/pycache"

python=$("$root/tests/environment.sh" object-store "$here/requirements.txt")
exec "$python" -m pytest -q -p no:cacheprovider "$@" "$here/object_stores.py"
