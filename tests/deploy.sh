#!/usr/bin/env bash
# All tests of deploy/, of a build folder's programs: those of tests/deploy, and installing into a bare
# Debian and running upon it, which mmdebstrap makes. As root; 4 minutes on two cores.
#   tests/deploy.sh [BUILD]      build/quick, which tests/run.sh makes, unless told
# systemd itself and a cluster cannot run in a container: units and manifests are checked, not started.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh
[ "$(id -u)" -eq 0 ] || { echo "error: images and bare systems are made as root" >&2; exit 1; }
# shellcheck disable=SC2086
install_packages $build_packages $test_packages mmdebstrap
build=${1:-build/quick}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mmdebstrap --quiet --variant=minbase bookworm "$work/bare.tar"
RECURVE_BARE_SYSTEM=$work/bare.tar RECURVE_BIN=$build/bin tests/deploy/run.sh -rs
