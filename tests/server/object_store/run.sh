#!/usr/bin/env bash
# Tests the client of object stores, and servers that share one, with stores of others, in a separate environment.
#   RECURVE_BIN=build/release/bin tests/server/object_store/run.sh [PYTEST_OPTIONS]
#   RECURVE_BIN=build/release/bin tests/server/object_store/run.sh --losses [OPTIONS]: see losses.py
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
: "${RECURVE_BIN:?the folder of object_stores}"
RECURVE_BIN=$(cd "$RECURVE_BIN" && pwd)
export RECURVE_BIN PYTHONDONTWRITEBYTECODE='' PYTHONPYCACHEPREFIX="$root/build/pycache"

python=$("$root/tests/environment.sh" object-store "$here/requirements.txt")
if [ "${1:-}" = --losses ]; then
  exec "$python" "$here/losses.py" "${@:2}"
fi
exec "$python" -m pytest -q -p no:cacheprovider "$@" "$here/object_stores.py" "$here/replicas.py"
