#!/usr/bin/env bash
# Makes a Python environment of pinned packages in build/environments, or takes the one that is there.
#   tests/environment.sh NAME REQUIREMENTS     prints the path of its python
#   tests/environment.sh --all [BUT]           makes those of all tests but *BUT, one after the other
#   tests/environment.sh --bare FOLDER WHAT... makes one there of these packages alone, files or names
#   tests/environment.sh --into PYTHON WHAT... installs files into one that is there, and nothing else
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
if [ "$1" = --all ]; then
  while read -r name requirements; do
    [ -n "${2:-}" ] && [[ $name == *$2 ]] || "$0" "$name" "$root/tests/$requirements" >/dev/null || echo "$name was not made"
  done <<END
clients-openai-current clients_of_others/openai/requirements-current.txt
clients-python clients/python/requirements.txt
deploy deploy/requirements.txt
clients-kserve clients_of_others/kserve/requirements.txt
page page/requirements.txt
clients-openai-previous clients_of_others/openai/requirements-previous.txt
clients-anthropic-current clients_of_others/anthropic/requirements-current.txt
clients-anthropic-previous clients_of_others/anthropic/requirements-previous.txt
constraint server/constraint/requirements.txt
object-store server/object_store/requirements.txt
world-tokenizer golden/world_tokenizer/requirements.txt
END
  exit
fi
environments=$root/build/environments
installer=$environments/installer
release="uv==0.13.9" # pip takes ten times the processor for the same

mkdir -p "$environments"
# is_made FOLDER OF_WHAT, and made FOLDER OF_WHAT, last of all: only whole environments are taken.
is_made() { [ "$(cat "$1/made_of" 2>/dev/null)" = "$2" ]; }
made() { printf '%s' "$2" >"$1/made_of"; }

exec 8>"$installer.lock"
flock 8 # of several tests that want one, one makes it
if ! is_made "$installer" "$release"; then
  rm -rf "$installer"
  /usr/bin/python3 -m venv "$installer" >&2
  "$installer/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$release" >&2
  made "$installer" "$release"
fi
exec 8>&-

# uv ARGUMENTS...: asks the registry that pip is set up for.
uv() {
  local index
  index=${PIP_INDEX_URL:-$("$installer/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
  [ -z "$index" ] || export UV_DEFAULT_INDEX=$index
  [ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$PIP_CERT}
  "$installer/bin/uv" "$@" >&2
}
# install_into PYTHON ARGUMENTS...
install_into() {
  local python=$1
  shift
  uv pip install --quiet --python "$python" "$@"
}

case $1 in
  --bare)
    uv venv --quiet --python /usr/bin/python3 "$2"
    install_into "$2/bin/python" "${@:3}"
    exit
    ;;
  --into)
    install_into "$2" --no-deps --no-build-isolation --reinstall "${@:3}"
    exit
    ;;
esac

name=$1 requirements=$2 environment=$environments/$1
exec 9>"$environment.lock"
flock 9
wanted=$(cat "$requirements")
if ! is_made "$environment" "$wanted"; then
  uv venv --quiet --clear --seed --python /usr/bin/python3 "$environment"
  install_into "$environment/bin/python" -r "$requirements"
  made "$environment" "$wanted"
fi
echo "$environment/bin/python"
