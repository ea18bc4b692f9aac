#!/usr/bin/env bash
# Tests constraints against others' implementations of JSON Schema and on public suites of schemas.
#   RECURVE_BIN=build/release/bin tests/server/constraint/run.sh [--answers 10000] [PYTEST_OPTIONS]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
: "${RECURVE_BIN:?the folder of constraint_answers}"
RECURVE_BIN=$(cd "$RECURVE_BIN" && pwd)
export RECURVE_BIN PYTHONDONTWRITEBYTECODE='' PYTHONPYCACHEPREFIX="$root/build/pycache"

python=$("$root/tests/environment.sh" constraint "$here/requirements.txt")
exec "$python" -m pytest -q -p no:cacheprovider "$@" "$here/suites.py"
