#!/usr/bin/env bash
# Durable sessions while their server is killed (kill -9) again and again, at random moments: after
# each restart all that was acknowledged is there, to the bit, and nothing twice. tests/run.sh has a
# form of some seconds, and with --all one of two minutes. Built before.
#   tests/durable/kills.sh [--minutes 60] [--preset release]
set -euo pipefail
cd "$(dirname "$0")/../.."

minutes=60 preset=release
while [ $# -gt 0 ]; do
  case $1 in
    --minutes) minutes=$2 ;;
    --preset) preset=$2 ;;
    *) echo "usage: tests/durable/kills.sh [--minutes 60] [--preset release]" >&2 && exit 2 ;;
  esac
  shift 2
done
RECURVE_KILL_SECONDS=$(awk "BEGIN { print int(60 * $minutes) }") \
  "build/$preset/bin/service_durable_sessions_test" --gtest_filter='*NoKillLoses*'
