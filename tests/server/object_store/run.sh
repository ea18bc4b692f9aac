#!/usr/bin/env bash
# Tests the client of object stores, and servers that share one, with stores of others, in a separate environment. --routers: servers
# behind routers.
#   RECURVE_BIN=build/release/bin tests/server/object_store/run.sh [--routers] [PYTEST_OPTIONS]
#   RECURVE_BIN=build/release/bin tests/server/object_store/run.sh --losses [OPTIONS]: see losses.py
#   RECURVE_BIN=build/release/bin tests/server/object_store/run.sh --routed [OPTIONS]: see routed.py
#   RECURVE_BIN=build/release/bin tests/server/object_store/run.sh --streams [OPTIONS]: see routed_streams.py
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
if [ "${1:-}" = --routed ]; then
  exec "$python" "$here/routed.py" "${@:2}"
fi
if [ "${1:-}" = --streams ]; then
  exec "$python" "$here/routed_streams.py" "${@:2}"
fi
files=("$here"/{object_stores,replicas,marks,drains,growing_states,tenants,bad_stores,shared_prefixes}.py)
if [ "${1:-}" = --routers ]; then
  files=("$here"/{routers,routed,routed_streams}.py)
  shift
fi
exec "$python" -m pytest -q -p no:cacheprovider "$@" "${files[@]}"
