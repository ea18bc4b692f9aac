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
environment=$root/build/environments/$name

mkdir -p "$root/build/environments"
exec 9>"$environment.lock"
flock 9 # of several tests that want it, one makes it
if ! cmp -s "$requirements" "$environment/requirements.txt"; then
  rm -rf "$environment"
  /usr/bin/python3 -m venv "$environment" >&2
  # Not compiled to byte code, a third of the time: most of it is never imported.
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
    -r "$requirements" >&2
  cp "$requirements" "$environment/requirements.txt" # last: only whole environments are taken
fi
echo "$environment/bin/python"
