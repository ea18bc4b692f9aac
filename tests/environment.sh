#!/usr/bin/env bash
# Makes a Python environment of pinned packages in build/environments, or takes the one that is there.
#   tests/environment.sh NAME REQUIREMENTS     prints the path of its python
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
name=$1 requirements=$2
environment=$root/build/environments/$name

mkdir -p "$root/build/environments"
exec 9>"$environment.lock"
flock 9 # of several tests that want it, one makes it
if ! cmp -s "$requirements" "$environment/requirements.txt"; then
  rm -rf "$environment"
  /usr/bin/python3 -m venv "$environment" >&2
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
    -r "$requirements" >&2
  cp "$requirements" "$environment/requirements.txt" # last: only whole environments are taken
fi
echo "$environment/bin/python"
