#!/usr/bin/env bash
# Makes a Python environment of pinned packages in build/environments, or takes the one that is there.
#   tests/environment.sh NAME REQUIREMENTS     prints the path of its python
#   tests/environment.sh --all                 makes those of all tests, one after the other
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
if [ "$1" = --all ]; then
  while read -r name requirements; do
    "$0" "$name" "$root/tests/$requirements" >/dev/null || echo "$name was not made"
  done <<END
clients-openai-current clients_of_others/openai/requirements-current.txt
clients-python clients/python/requirements.txt
deploy deploy/requirements.txt
clients-kserve clients_of_others/kserve/requirements.txt
page page/requirements.txt
clients-openai-previous clients_of_others/openai/requirements-previous.txt
constraint server/constraint/requirements.txt
world-tokenizer golden/world_tokenizer/requirements.txt
END
  exit
fi
name=$1 requirements=$2
environments=$root/build/environments
environment=$environments/$name
installer=$environments/installer
uv="uv==0.13.9" # pip takes ten times the processor for the same

mkdir -p "$environments"
# is_made FOLDER OF_WHAT, and made FOLDER OF_WHAT, last of all: only whole environments are taken.
is_made() { [ "$(cat "$1/made_of" 2>/dev/null)" = "$2" ]; }
made() { printf '%s' "$2" >"$1/made_of"; }

exec 8>"$installer.lock"
flock 8 # of several tests that want one, one makes it
if ! is_made "$installer" "$uv"; then
  rm -rf "$installer"
  /usr/bin/python3 -m venv "$installer" >&2
  "$installer/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$uv" >&2
  made "$installer" "$uv"
fi
exec 8>&-

exec 9>"$environment.lock"
flock 9
wanted=$(cat "$requirements")
if ! is_made "$environment" "$wanted"; then
  # It asks the registry that pip is set up for.
  index=${PIP_INDEX_URL:-$("$installer/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
  [ -z "$index" ] || export UV_DEFAULT_INDEX=$index
  [ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$PIP_CERT}
  "$installer/bin/uv" venv --quiet --clear --seed --python /usr/bin/python3 "$environment" >&2
  "$installer/bin/uv" pip install --quiet --python "$environment/bin/python" -r "$requirements" >&2
  made "$environment" "$wanted"
fi
echo "$environment/bin/python"
