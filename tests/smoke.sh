#!/usr/bin/env bash
# Starts the real server of an install tree (deploy/install_tree.sh) or a build folder, asks of it
# what recurve-smoke asks, and waits for it to drain.
#   tests/smoke.sh TREE MODEL [--device D] [--streams N] [--tokens N] [FLAGS OF THE SERVER...]
#   tests/smoke.sh TREE tests/configs/xlstm-7b.json --random-weights --device cuda:0
# The exit status is 0 if all went well.
set -uo pipefail
[ $# -ge 2 ] || { sed -n 's/^# \{0,1\}//p' "$0" | sed -n 2,6p >&2; exit 2; }
tree=$1 model=$2
shift 2
streams=256 tokens=32 flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --streams) streams=$2; shift ;;
    --tokens) tokens=$2; shift ;;
    *) flags+=("$1") ;;
  esac
  shift
done

log=$(mktemp)
started=$(date +%s%3N)
"$tree/bin/recurve-server" --model "$model" --listen 127.0.0.1:0 --slots "$streams" \
  --max-queue 1024 --ttft-ms 0 "${flags[@]}" 2>"$log" &
server=$!
finish() {
  kill -KILL "$server" 2>/dev/null
  rm -f "$log"
}
trap finish EXIT

for _ in $(seq 6000); do
  port=$(sed -n 's/.*event=serving.* port=\([0-9]*\).*/\1/p' "$log")
  [ -n "$port" ] && break
  kill -0 "$server" 2>/dev/null || { cat "$log"; echo "FAILED: the server did not start"; exit 1; }
  sleep 0.05
done
grep '^  ' "$log" | grep -v '^  ops'
echo "started in $(($(date +%s%3N) - started)) ms"

status=0
"$tree/bin/recurve-smoke" --server "127.0.0.1:$port" --streams "$streams" --tokens "$tokens" ||
  status=1
for _ in $(seq 1200); do
  kill -0 "$server" 2>/dev/null || break
  sleep 0.05
done
kill -0 "$server" 2>/dev/null && { echo "FAILED: the server has not drained"; exit 1; }
wait "$server" || { echo "FAILED: the server ended with status $?"; status=1; }
[ $status -eq 0 ] || tail -30 "$log"
exit $status
