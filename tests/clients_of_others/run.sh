#!/usr/bin/env bash
# Tests the server in RECURVE_BIN with clients of an HTTP API, "openai" or "anthropic", in separate environments:
# "current", with all of them, and "previous", with the API's own client a major before. "agents current" runs
# Codex and Claude Code, which take 800 MB; tests/run.sh skips them.
#   RECURVE_BIN=build/release/bin tests/clients_of_others/run.sh API ENVIRONMENT [PYTEST_OPTIONS]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
: "${RECURVE_BIN:?the folder of recurve-server}"
RECURVE_BIN=$(cd "$RECURVE_BIN" && pwd)
api=$1 environment=$2
shift 2
# Nothing of these tools may look for the network: there is none but the server.
export RECURVE_BIN PYTHONDONTWRITEBYTECODE='' PYTHONPYCACHEPREFIX="$root/build/pycache" HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
export LANGSMITH_TRACING=false LANGCHAIN_TRACING_V2=false DO_NOT_TRACK=1

python=$("$root/tests/environment.sh" "clients-$api-$environment" "$here/$api/requirements-$environment.txt")
exec "$python" -m pytest -q -p no:cacheprovider "$@" "$here/$api"
