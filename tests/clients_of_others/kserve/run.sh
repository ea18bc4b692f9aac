#!/usr/bin/env bash
# Tests the server in RECURVE_BIN before Triton's client, TLS before several, and the table of requests
# through every frontend, in a separate environment.
#   RECURVE_BIN=build/release/bin tests/clients_of_others/kserve/run.sh [PYTEST_OPTIONS]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
: "${RECURVE_BIN:?the folder of recurve-server}"
RECURVE_BIN=$(cd "$RECURVE_BIN" && pwd)
export RECURVE_BIN PYTHONDONTWRITEBYTECODE='' PYTHONPYCACHEPREFIX="$root/build/pycache"

python=$("$root/tests/environment.sh" clients-kserve "$here/requirements.txt")
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  --force-reinstall "$root/clients/python"
exec "$python" -m pytest -q -p no:cacheprovider "$@" "$here" "$here/../tls" "$root/tests/frontends"
