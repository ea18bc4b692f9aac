#!/usr/bin/env bash
# Recurve's main job on one screen: builds the server, starts it on a small trained xLSTM, streams a
# story over gRPC from a session, and goes on with the same session.
#   deploy/demo.sh [--model NAME] [--prompt TEXT] [--tokens N] [--device cpu|reference]
# NAME: a folder of weights_tools/demo, e.g. xlstm-books, mamba2-books, qwen35-books, rwkv7-books.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh

model=xlstm-books
prompt="The old man put down his pipe and"
tokens=120
device=cpu
while [ $# -gt 0 ]; do
  case "$1" in
    --model) model=$2 && shift 2 ;;
    --prompt) prompt=$2 && shift 2 ;;
    --tokens) tokens=$2 && shift 2 ;;
    --device) device=$2 && shift 2 ;;
    *)
      sed -n '2,5s/^# \?//p' "$0"
      exit 2
      ;;
  esac
done

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "1. Packages"
# shellcheck disable=SC2086
install_packages $build_packages
echo "all there"

say "2. Build"
log=$(mktemp)
# A first build is without CUDA: the demo has no use for it, and it takes longer than all the rest.
cuda=$(sed -n 's/^RECURVE_CUDA:STRING=//p' build/release/CMakeCache.txt 2>/dev/null || true)
cmake --preset release -DRECURVE_TESTS=OFF -DRECURVE_CUDA="${cuda:=OFF}" >"$log" 2>&1 ||
  { cat "$log" && exit 1; }
if [ "$cuda" = OFF ] && [ -x "$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc)" ]; then
  echo "for the CPU alone; with CUDA: cmake --preset release && cmake --build --preset release"
fi
cmake --build --preset release --target recurve-server recurve
bin=build/release/bin

say "3. Server"
$bin/recurve-server --model "weights_tools/demo/$model" --device "$device" \
  --listen 127.0.0.1:0 2>"$log" &
server=$!
stop() {
  kill "$server" 2>/dev/null && wait "$server" 2>/dev/null
  rm -f "$log" "${said:-}"
}
trap stop EXIT
until grep -q 'event=serving' "$log"; do
  kill -0 "$server" 2>/dev/null || { cat "$log" && exit 1; }
  sleep 0.05
done
cat "$log"
port=$(sed -n 's/.*event=serving.* port=\([0-9]*\).*/\1/p' "$log")
export RECURVE_SERVER=127.0.0.1:$port

said=$(mktemp)
# generate ARGUMENTS...: text as it streams, then what it took.
generate() {
  local status=0
  $bin/recurve generate --session story --temperature 0.7 --top-p 0.9 --stats "$@" 2>"$said" ||
    status=$?
  echo
  cat "$said"
  return $status
}

say "4. A story, streamed from the session \"story\""
$bin/recurve session open story >/dev/null
printf '%s' "$prompt"
generate --prompt "$prompt" --max-tokens "$tokens" --seed 2

say "5. The same session goes on: it remembers; nothing is sent again"
$bin/recurve session mark story here >/dev/null
generate --prompt "" --max-tokens "$tokens" --seed 2

say "6. Back to the mark, and another ending"
$bin/recurve session rewind story here >/dev/null
generate --prompt "" --max-tokens "$tokens" --seed 3
$bin/recurve session list

say "Done. By hand:"
cat <<END
  $bin/recurve-server weights_tools/demo/$model
  $bin/recurve chat
END
