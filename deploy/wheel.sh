#!/usr/bin/env bash
# Packs the server for `pip install`: builds an install tree for the CPU, or takes the one it is given.
#   deploy/wheel.sh OUT [TREE]
#   pip install OUT/recurve_server-*.whl && recurve-server MODEL_DIR
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=$(realpath "$1") tree=${2:-}
if [ -z "$tree" ]; then
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  RECURVE_CUDA=OFF RECURVE_BUILD=${RECURVE_BUILD:-build/wheel} "$here/install_tree.sh" "$tree" >&2
fi
/usr/bin/python3 "$here/wheel.py" "$tree" "$out"
