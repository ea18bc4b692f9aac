#!/usr/bin/env bash
# The server at 80 % of what it can for a while, with all kinds of requests and of clients;
# afterwards slots, sessions, memory and file handles are where they began. Built before.
#   tests/soak.sh [--minutes 20] [--preset release]
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=20 preset=release
while [ $# -gt 0 ]; do
  case $1 in
    --minutes) minutes=$2 ;;
    --preset) preset=$2 ;;
    *) echo "usage: tests/soak.sh [--minutes 20] [--preset release]" >&2 && exit 2 ;;
  esac
  shift 2
done
RECURVE_SOAK_SECONDS=$(awk "BEGIN { print 60 * $minutes }") "build/$preset/bin/service_test" --gtest_filter='*Soak*'
