#!/usr/bin/env bash
# Installs missing packages, builds and tests. Needs no GPU, and no network but Debian's and PyPI's packages.
#   tests/run.sh              all tests for the CPU, with a sample of the repetitive cases, without the
#                             benchmarks and OpenAI's previous client; compiled by clang with little
#                             optimisation outside of the kernels
#   tests/run.sh --all        all tests as shipped; also under ASan and UBSan, with fuzzing, and under
#                             TSan; a soak of two minutes; two minutes of kill -9 with durable sessions;
#                             and compiles CUDA, to PTX for one architecture. CI=true in the
#                             environment does the same
# tests/gpu.sh compiles all of CUDA and runs it on a GPU.
# The last lines show the time of each part, the slowest tests, and how many tests passed and failed. The
# exit status is 0 if none failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. deploy/packages.sh

all=""
[ "${CI:-}" = true ] && all=1
for argument in "$@"; do
  case $argument in
    --all) all=1 ;;
    *) sed -n '2,12s/^# \?//p' "$0" && exit 2 ;;
  esac
done
results=build/results
export PYTHONDONTWRITEBYTECODE=1
# tests/tsan.supp names functions.
symbolizer=external_symbolizer_path=/usr/bin/llvm-symbolizer-19
export ASAN_OPTIONS=detect_leaks=1:$symbolizer UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:$symbolizer
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp halt_on_error=1 $symbolizer"

parts=() part="" part_began=0
# say PART: ends the part before, and begins this one.
say() {
  [ -z "$part" ] || parts+=("$(printf '%6d s  %s' $((SECONDS - part_began)) "$part")")
  part=$1 part_began=$SECONDS
  printf '\n== %s (%d min %02d s)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60))
}
checks=()
# passed NAME STATUS: remembers how a check ended, and returns that.
passed() {
  checks+=(--check "$1=$2")
  [ "$2" -eq 0 ] || echo "FAILED: $1"
  return "$2"
}
# check NAME COMMAND...
check() {
  local name=$1 status=0
  shift
  "$@" || status=$?
  passed "$name" $status
}

format_of_ours() {
  git ls-files '*.h' '*.cc' '*.cu' '*.cuh' |
    xargs -r -n 40 -P "$(nproc)" clang-format-19 --dry-run -Werror
}

# configure PRESET
configure() {
  cmake --preset "$1" >"$results/$1-configure.log" || { cat "$results/$1-configure.log"; return 1; }
}
# build PRESET TARGET...: with a compiler for each processor. With Ninja's two more, each waits for memory
# longer: a tenth more time.
build() {
  local preset=$1
  shift
  configure "$preset" && cmake --build --preset "$preset" --parallel "$(nproc)" --target "$@"
}

# run_tests PRESET CTEST_OPTIONS...: more tests at a time than there are processors, as many wait for servers.
run_tests() {
  local preset=$1
  shift
  ctest --test-dir "build/$preset" -j "$(($(nproc) + 2))" --output-on-failure --no-tests=error \
    --output-junit "$PWD/$results/$preset.xml" --test-output-size-passed 1000000 \
    --test-output-size-failed 1000000 "$@"
}

# Compiles and links all of CUDA, and runs what needs no GPU.
check_cuda() {
  if [ -z "$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc)" ]; then
    echo "no nvcc on this machine: CUDA is not compiled"
    return 0
  fi
  build cuda kernels_test kernels_linear_test kernels_recurrence_test &&
    build/cuda/bin/kernels_test --gtest_filter='CudaDevice*'
}

mkdir -p "$results"
rm -f "$results"/*.xml

say "packages"
# shellcheck disable=SC2086
install_packages $build_packages $test_packages || exit 1

say "layout and format"
check "layering" /usr/bin/python3 tests/layering_test.py .
check "clang-format" format_of_ours

# With --all, tests that compute run as shipped, the others only under the sanitizers. Without it, the kernels have
# two instruction sets, there are no benchmarks, and repetitive cases are sampled.
preset=check not_needed=""
[ -n "$all" ] || preset=quick not_needed=-previous
say "$preset: configuration"
configure $preset  # draws the golden weights, which Python's tests read

# Python's tests take one processor, and the build leaves them their share. Then the environments of
# the tests that need further packages; one that cannot be made fails in its test, by name.
/usr/bin/python3 -m pytest -q -p no:cacheprovider --junitxml "$results/python.xml" tests \
  >"$results/python.log" 2>&1 </dev/null &
python=$!
{
  tail --pid=$python -f /dev/null
  tests/environment.sh --all $not_needed
} >"$results/environments.log" 2>&1 </dev/null &

[ -d "${RECURVE_DATA:-../shared/data}" ] ||
  echo "(no folder ../shared/data, nor RECURVE_DATA: the tests that need it are skipped)"
say "$preset: build, and Python"
check "$preset: build" build $preset all
built_to_test=$?
if check "Python" wait $python; then
  tail -n 1 "$results/python.log"
else
  cat "$results/python.log"
fi
say "$preset: tests"
[ $built_to_test -ne 0 ] || check "$preset: tests" run_tests $preset

if [ -n "$all" ]; then
  # While the next preset compiles, which leaves them the time that they need.
  tests/soak.sh --minutes 2 --preset check >"$results/soak.log" 2>&1 &
  soak=$!
  tests/durable/kills.sh --minutes 2 --preset check >"$results/kills.log" 2>&1 &
  kills=$!
  say "asan: build, soak and kill -9"
  check "asan: build" build asan all && say "asan: tests" && check "asan: tests" run_tests asan
  say "tsan: build"
  check "tsan: build" build tsan tsan_tests && say "tsan: tests" && check "tsan: tests" run_tests tsan -L tsan
  say "cuda"
  check "cuda" check_cuda
  check "soak" wait $soak || cat "$results/soak.log"
  check "kill -9" wait $kills || cat "$results/kills.log"
fi

say "all"
printf '%s\n' "${parts[@]}"
/usr/bin/python3 tests/count.py "${checks[@]}" "$results"/*.xml
