#!/usr/bin/env bash
# Measures the whole server on a GPU with recurve-loadgen, in about four minutes:
#   tests/load_gpu.sh all TREE      both of these
#   tests/load_gpu.sh closed TREE   64 and 256 closed-loop streams of decode, next to what
#                                   `recurve-bench step` reaches at that batch
#   tests/load_gpu.sh mixed TREE    Poisson, prompts around 1,024 tokens, answers around 256: the
#                                   highest rate that holds the service level (p99 TTFT 500 ms,
#                                   p99 TPOT 30 ms), then twice that rate
# TREE is an install tree (deploy/install_tree.sh) or a build folder with CUDA. Random weights, from
# a config alone.
#   OUT=FOLDER        JSON, HTML and logs go there; build/load_gpu if not said
#   RECURVE_CONFIG, RECURVE_DEVICE, RECURVE_SLOTS, RECURVE_LOAD_FLAGS, RECURVE_BANDWIDTH,
#   RECURVE_FIRST_RATE
# The exit status is 0 if everything ran, whatever the figures.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
mode=${1:-} tree=${2:-}
if [ ! -x "$tree/bin/recurve-loadgen" ] || ! [[ $mode =~ ^(all|closed|mixed)$ ]]; then
  sed -n 's/^# \{0,1\}//p' "$0" | sed -n 2,14p >&2
  exit 2
fi
out=${OUT:-build/load_gpu}
config=${RECURVE_CONFIG:-tests/configs/xlstm-7b.json}
device=${RECURVE_DEVICE:-cuda:0}
slots=${RECURVE_SLOTS:-256}
mkdir -p "$out"
log=$out/server-$mode.log
server=""
stop_server() {
  [ -n "$server" ] && kill "$server" 2>/dev/null && wait "$server"
  server=""
}
trap stop_server EXIT

# Unless it runs already. Sets $address once it serves.
start_server() {
  [ -n "$server" ] && return
  local port="" started=$SECONDS
  # shellcheck disable=SC2086
  "$tree/bin/recurve-server" --model "$config" --random-weights --device "$device" \
    --slots "$slots" --ttft-ms 500 --listen 127.0.0.1:0 ${RECURVE_LOAD_FLAGS:-} 2>"$log" &
  server=$!
  while [ -z "$port" ]; do
    sleep 0.1
    port=$(sed -n 's/.*event=serving.* port=\([0-9]*\).*/\1/p' "$log")
    kill -0 "$server" 2>/dev/null || { cat "$log"; echo "FAILED: the server did not start"; exit 1; }
  done
  address=127.0.0.1:$port
  echo "server up after $((SECONDS - started)) s"
}

load() {
  local name=$1
  shift
  "$tree/bin/recurve-loadgen" --server "$address" --quiet --workers 4 --json "$out/$name.json" \
    --html "$out/$name.html" "$@" || echo "FAILED: loadgen $name ended with status $?"
}

# Long answers of mixed lengths behind short prompts: nearly every step is a decode of all streams.
closed() {
  "$tree/bin/recurve-bench" --json step --device "$device" --config "$config" --random --batch 64,256 \
    --bandwidth "${RECURVE_BANDWIDTH:-4300}" >"$out/step.json" 2>"$out/step.log" ||
    { echo "FAILED: recurve-bench step"; tail -3 "$out/step.log"; }
  start_server
  for streams in 64 256; do
    load "closed-$streams" --streams "$streams" --prompt-tokens 16 \
      --output-tokens uniform:1500-4000 --warmup 4 --duration 8 --cooldown 0
  done
  python3 - "$out" <<'PYTHON'
import json, pathlib, sys
out = pathlib.Path(sys.argv[1])
steps = [json.loads(line) for line in (out / "step.json").read_text().splitlines() if line]
step = {row["batch"]: row["tok_per_s"] for row in steps}
for streams in (64, 256):
    trial = json.loads((out / f"closed-{streams}.json").read_text())["trials"][0]
    served = trial["throughput"]["tokens_per_s"]
    alone = step.get(streams)
    share = f"{100 * served / alone:.1f} % of the step's {alone:.0f} (wanted: 95)" if alone else ""
    print(f"{streams} streams: {served:.0f} tokens/s, {share}")
PYTHON
}

# A request lives for some 5 s, so the load is what it will be only after so long.
mixed() {
  start_server
  load mixed --sweep --sweep-start "${RECURVE_FIRST_RATE:-5}" --sweep-precision 0.15 \
    --prompt-tokens lognormal:1024,0.5 --output-tokens lognormal:256,0.3 \
    --warmup 5 --duration 15 --cooldown 10
  python3 - "$out" <<'PYTHON'
import json, pathlib, sys
report = json.loads((pathlib.Path(sys.argv[1]) / "mixed.json").read_text())
sweep, trials = report["sweep"], report["trials"]
if sweep["highest_rate"] is None:
    sys.exit("no rate held the service level")
peak = max(t["throughput"]["good_requests_per_s"] for t in trials if t["holds_service_level"])
print(f"highest rate that held: {sweep['highest_rate']:.2f}/s, goodput there {peak:.2f}/s")
over = trials[sweep["overload_trial"]]["throughput"]["good_requests_per_s"]
print(f"goodput at twice that rate: {over:.2f}/s, {100 * over / peak:.0f} % of it (wanted: 90)")
PYTHON
}

all() {
  closed
  mixed
}

$mode
stop_server
