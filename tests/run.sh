#!/usr/bin/env bash
# Installs what is missing, builds and runs every test: no GPU, no network but the package archive.
#   tests/run.sh [--quick]     --quick: no sanitizer builds
# Of CUDA it checks that it compiles, up to PTX for one architecture; tests/gpu.sh compiles and runs
# all of it. The last lines say how long each part took and how many tests passed and failed; the
# exit status is 0 if none failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. deploy/packages.sh

quick=""
[ "${1:-}" = "--quick" ] && quick=1
results=build/results
export PYTHONDONTWRITEBYTECODE=1

parts=() part="" part_began=0
# say PART: ends the part before, and begins this one.
say() {
  [ -z "$part" ] || parts+=("$(printf '%6d s  %s' $((SECONDS - part_began)) "$part")")
  part=$1 part_began=$SECONDS
  printf '\n== %s (%d min %02d s)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60))
}
checks=()
# check NAME COMMAND...: runs it and remembers how it ended.
check() {
  local name=$1 status=0
  shift
  "$@" || status=$?
  checks+=(--check "$name=$status")
  [ $status -eq 0 ] || echo "FAILED: $name"
  return $status
}

# build_and_test PRESET TARGET CTEST_OPTIONS...
build_and_test() {
  local preset=$1 target=$2
  shift 2
  say "$preset: build"
  check "$preset: configure" \
    cmake --preset "$preset" -DRECURVE_ALL_TESTS="$all_tests" >"$results/$preset-configure.log" ||
    { cat "$results/$preset-configure.log"; return 1; }
  check "$preset: build" cmake --build --preset "$preset" --target "$target" || return 1
  say "$preset: tests"
  ctest --test-dir "build/$preset" -j "$(nproc)" --output-on-failure --no-tests=error \
    --output-junit "$PWD/$results/$preset.xml" --test-output-size-passed 1000000 \
    --test-output-size-failed 1000000 "$@"
}

format_of_ours() {
  git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs -r clang-format --dry-run -Werror
}

mkdir -p "$results"
rm -f "$results"/*.xml

say "packages"
# shellcheck disable=SC2086
install_packages $build_packages $test_packages || exit 1

say "layout and format"
check "layering" /usr/bin/python3 tests/layering_test.py .
check "clang-format" format_of_ours

say "Python"
/usr/bin/python3 -m pytest -q -p no:cacheprovider --junitxml "$results/python.xml" tests

[ -d "${RECURVE_DATA:-../shared/data}" ] ||
  echo "(no folder ../shared/data, nor RECURVE_DATA: the tests that need it are skipped)"
if [ -n "$quick" ]; then
  all_tests=ON
  build_and_test check all
else
  # What computes is tested as it is shipped and under the sanitizers, all else under them alone.
  all_tests=OFF
  build_and_test check all
fi
# Beside the builds of the sanitizers, which leave it as much as it takes.
tests/soak.sh --minutes 2 --preset check >"$results/soak.log" 2>&1 &
soak=$!
if [ -z "$quick" ]; then
  all_tests=ON
  export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
  build_and_test asan all
  export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp halt_on_error=1"
  build_and_test tsan tsan_tests -L tsan
fi

say "soak"
check "soak" wait $soak || cat "$results/soak.log"

say "all"
printf '%s\n' "${parts[@]}"
/usr/bin/python3 tests/count.py "${checks[@]}" "$results"/*.xml
