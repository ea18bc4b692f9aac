#!/usr/bin/env bash
# Compares the World tokenizer with the package rwkv over the package's whole vocabulary.
#   RECURVE_BIN=build/release/bin tests/golden/world_tokenizer/run.sh [GTEST_OPTIONS]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
: "${RECURVE_BIN:?the folder of world_vocabulary_test}"

python=$("$root/tests/environment.sh" world-tokenizer "$here/requirements.txt")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" "$here/make_golden.py" whole "$folder"
RECURVE_WORLD=$folder "$RECURVE_BIN/world_vocabulary_test" "$@"
