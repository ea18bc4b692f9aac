#!/usr/bin/env bash
# Tests the page in headless Chromium, before the server in RECURVE_BIN; pictures of it are kept in
# build/results.
#   RECURVE_BIN=build/release/bin tests/page/run.sh [PYTEST_OPTIONS]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
: "${RECURVE_BIN:?the folder of recurve-server}"
RECURVE_BIN=$(cd "$RECURVE_BIN" && pwd)
export RECURVE_BIN PYTHONDONTWRITEBYTECODE='' PYTHONPYCACHEPREFIX="$root/build/pycache"

python=$("$root/tests/environment.sh" page "$here/requirements.txt")
# Where the system has none, as Ubuntu, playwright's own is fetched.
if ! command -v chromium-headless-shell >/dev/null &&
  ! "$python" -m playwright install --with-deps --only-shell chromium; then
  echo "skipped: there is no chromium-headless-shell, and playwright's could not be fetched" >&2
  exit 77
fi
exec "$python" -m pytest -q -p no:cacheprovider "$@" "$here"
