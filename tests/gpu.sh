#!/usr/bin/env bash
# Builds on a machine with a GPU (CUDA 13, CMake, GoogleTest, fmt, nlohmann-json, CLI11, the header of
# xxhash, which may lie in build/include where it is not installed; no gRPC),
# runs the tests of kernels, models and the engine there and measures decode steps, prompts and what
# 10,000 tokens, decoded and as prompts, drift from the reference, on the demo checkpoints. A demo
# checkpoint whose weights did not travel to the machine is left out, by name.
#   OUT=FOLDER tests/gpu.sh [PART...]     results also as JSON lines in FOLDER, build/gpu if not said
# The parts are tests, drift and measures; without any named all of them. One of them takes less than
# ten minutes with the build, on 16 cores. The last lines are the table and what failed; the exit
# status is 0 if nothing did.
#   tests/gpu.sh pack     builds only, and packs the programs into build/gpu-programs.tar.xz
# A machine that has this file next to the sources it was built from does not build: so the minutes of
# a GPU go into what needs one. RECURVE_GPU_ARCHITECTURES=90a-real halves the build.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
out=${OUT:-build/gpu}
build=${RECURVE_GPU_BUILD:-build/gpu-tree}
bandwidth=${RECURVE_GPU_BANDWIDTH:-4300}  # GB/s, as the floors of decode are counted
export PATH=$PATH:/usr/local/cuda/bin CPLUS_INCLUDE_PATH=$PWD/build/include:${CPLUS_INCLUDE_PATH:-}
mkdir -p "$out"
failures=()
packed=build/gpu-programs.tar.xz
parts=${*:-tests drift measures}
[ "$parts" = pack ] && parts=""
for part in $parts; do
  case $part in
  tests | drift | measures) ;;
  *) echo "gpu.sh: no part \"$part\": the parts are tests, drift and measures" && exit 2 ;;
  esac
done

say() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }
fail() {
  echo "FAILED: $1"
  failures+=("$1")
}

# Of all that the programs are built from.
sources() {
  find CMakeLists.txt kernels model server tests -type f \
    -regex '.*\(\.cc\|\.h\|\.cu\|\.cuh\|\.cmake\|CMakeLists\.txt\)' 2>/dev/null | LC_ALL=C sort |
    xargs sha256sum | sha256sum
}
# What was packed here or elsewhere, if it is of these sources.
unpack() {
  [ -n "$parts" ] && [ -f $packed ] || return 1
  mkdir -p "$build"
  tar -xJf $packed -C "$build" || return
  if [ "$(cat "$build/bin/sources")" != "$(sources)" ]; then
    echo "(not used: $packed is of other sources)"
    return 1
  fi
  export LD_LIBRARY_PATH=$PWD/$build/bin
  python3 -m weights_tools.golden_weights tests/golden
}
pack() {
  local bin=$build/packed/bin
  rm -rf "$build/packed"
  mkdir -p "$bin"
  cp "$build"/bin/{recurve-bench,{kernels,model,server_engine}*_test} "$bin" && strip "$bin"/* || return
  # Where programs are used other libraries may be installed than here.
  ldd "$bin/recurve-bench" | awk '/libfmt|libhwy/ { print $3 }' | xargs cp -L -t "$bin"
  sources >"$bin/sources"
  # They have the same kernels in them, each tens of megabytes.
  tar -C "$build/packed" -c bin | xz --lzma2=preset=1,dict=256MiB >$packed && ls -l $packed
}

build() {
  say "build"
  ninja="" keep_going="-k"
  command -v ninja >/dev/null && ninja="-G Ninja" keep_going="-k 0"
  # shellcheck disable=SC2086
  cmake -S . -B "$build" $ninja -DCMAKE_BUILD_TYPE=Release -DRECURVE_SERVER=OFF -DRECURVE_CUDA=ON \
    -DCMAKE_CUDA_ARCHITECTURES="${RECURVE_GPU_ARCHITECTURES:-80;90a-real}" \
    >"$out/configure.log" 2>&1 ||
    { cat "$out/configure.log"; exit 1; }
  # shellcheck disable=SC2086
  cmake --build "$build" -j "$(nproc)" -- $keep_going >"$out/build.log" 2>&1 ||
    { fail "build"; grep -A5 -E "error|FAILED" "$out/build.log" | head -60; }
  [ -x "$build/bin/recurve-bench" ] || exit 1
}
unpack || build
if [ -z "$parts" ]; then
  pack || fail "pack"
  exit $((${#failures[@]} > 0))
fi

# Demo checkpoints with their weights: a copy of the tree may be too large to carry them all.
books=()
for config in weights_tools/demo/*-books/config.json; do
  [ -f "$config" ] || continue
  folder=$(dirname "$config")
  if [ -f "$folder/model.safetensors" ]; then
    books+=("$folder")
  else
    echo "(left out: $folder has no model.safetensors here)"
  fi
done

# 10,000 tokens decoded by each of them, in both kinds of states, against the reference on a CPU, all
# at once. In bf16, and as they are stored, in int8.
drifts=()
drift() {
  "$build/bin/recurve-bench" drift --device cuda:0 --against reference --ids tests/bench/held_out.ids \
    --model "$1" "${@:3}" >"$out/drift-$(basename "$1")-$2.log" 2>&1
}
bf16="--weights bf16 --against-weights bf16"
run_drift() {
  for folder in "${books[@]}"; do
    # shellcheck disable=SC2086
    drift "$folder" decode $bf16 --within 0.1 &
    drifts+=($!)
    # shellcheck disable=SC2086
    drift "$folder" prompts $bf16 --rows 512 --within 0.1 &
    drifts+=($!)
    # shellcheck disable=SC2086
    drift "$folder" bf16-state $bf16 --bf16-state &
    drifts+=($!)
    drift "$folder" stored --within 0.1 &
    drifts+=($!)
  done
  say "drift of 10,000 tokens, ${#drifts[@]} times"
  for one in "${drifts[@]}"; do
    wait "$one" || fail "recurve-bench drift"
  done
  [ ${#drifts[@]} = 0 ] || awk 'FNR == NR || !/^ *bench/' "$out"/drift-*.log
}

# What ran on the CPU elsewhere need not run here; what is skipped for want of a GPU is a failure.
# All programs at once: nothing is measured.
run_tests() {
  say "tests"
  programs=() tests=()
  for test in "$build"/bin/{kernels,model,server_engine}*_test; do
    filter='*uda*:*eference*:Backend*'
    case $test in *server_engine*) filter='*uda*' ;; esac
    shards=1
    case $test in *recurrence* | *server_engine_test) shards=4 ;; esac  # they compare with a CPU's
    for ((shard = 0; shard < shards; ++shard)); do
      name=$(basename "$test")${shard/#0/}
      GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard timeout 400 "$test" \
        --gtest_filter="$filter" --gtest_brief=1 >"$out/$name.log" 2>&1 &
      tests+=($!) programs+=("$name")
    done
  done
  for i in "${!programs[@]}"; do
    program=${programs[i]}
    log=$out/$program.log
    wait "${tests[i]}" ||
      { fail "$program"; grep -B8 "FAILED\|terminate\|CUDA failed" "$log" | head -40; }
    grep -q "no GPU can be used\|this machine has" "$log" && fail "$program: no GPU"
    grep -E "^\[  (PASSED|FAILED) " "$log" | head -1 | sed "s|$| $program|"
  done

  if command -v compute-sanitizer >/dev/null; then
    say "compute-sanitizer"
    # sanitize TOOL PROGRAM FILTER
    sanitize() {
      timeout 100 compute-sanitizer --tool "$1" --error-exitcode 9 "$build/bin/$2" \
        --gtest_filter="$3" --gtest_brief=1 >"$out/$1-$2.log" 2>&1 ||
        { fail "$1 of $2"; tail -30 "$out/$1-$2.log"; }
    }
    linear='Cuda/*WhenSplit*:Cuda/*ResidualMayBe*:Cuda/*HandsOnInBfloat*'
    sanitize memcheck kernels_linear_test "$linear"
    sanitize racecheck kernels_linear_test "$linear"
    sanitize memcheck kernels_recurrence_test 'Cuda/*AChunkOfOneRow*:Cuda/*NeighboursAndSlots*'
    # Of the selective scan it is not asked: see kernels/cuda/README.md.
    sanitize racecheck kernels_recurrence_test 'Cuda/*AChunkOfOneRow*:Cuda/*Neighbours*/rg_lru_cuda:Cuda/*Neighbours*/ring_attention_cuda:-*/scan_cuda'
    sanitize memcheck kernels_test 'Cuda/Pointwise*:Cuda/AdaptedLayers*OfAGroup*:Cuda/AdaptedLayers*InSuccession*'
    sanitize memcheck server_engine_test 'Cuda/SampleDevices*/3'
    sanitize memcheck server_engine_invariants_test '*Scheduling*tied_bf16_cuda_0'
    sanitize memcheck model_test '*tied_bf16_cuda_0_*'
  else
    echo "(no compute-sanitizer on this machine)"
  fi
}

measured=() prompts=""
run_measures() {
  say "decode steps"
  # bench NAME MODEL...: one JSON line a batch size. Those that the card has no memory for are left out.
  bench() {
    local name=$1 log=$out/step-$1.log
    shift
    "$build/bin/recurve-bench" --json step --device cuda:0 "$@" --batch 1,8,64,256 \
      --seconds 0.3 --bandwidth "$bandwidth" >"$out/step-$name.json" 2>"$log" && return
    if grep -q "fewer slots or a smaller model may fit" "$log"; then
      echo "(left out: $name of more than $(wc -l <"$out/step-$name.json") of the batch sizes: $(tail -1 "$log"))"
    else
      fail "recurve-bench of $name"
      tail -3 "$log"
    fi
  }
  configs="xlstm-7b mamba-2.8b falcon-mamba-7b mamba2-2.7b codestral-7b gla-1.3b
    flashrnn-slstm-164m flashrnn-lstm-190m rwkv7-2.9b rwkv7-7.2b gated_deltanet-1.3b
    recurrentgemma-2b qwen3.5-9b qwen3.5-35b-a3b"
  # Of a model that would take long to draw, some layers.
  layers_of() { case $1 in qwen3.5-35b-a3b) echo --layers 8 ;; esac }
  demo=weights_tools/demo/xlstm-books
  [[ " ${books[*]} " = *" $demo "* ]] && bench xlstm-books --model "$demo" && measured+=(xlstm-books)
  for config in $configs; do
    measured+=("$config")
    # shellcheck disable=SC2046
    bench "$config" --config "tests/configs/$config.json" --random $(layers_of "$config")
  done

  say "prompts"
  # One JSON line a prompt length.
  prompts="xlstm-7b mamba-2.8b falcon-mamba-7b mamba2-2.7b gla-1.3b rwkv7-7.2b gated_deltanet-1.3b
    recurrentgemma-2b qwen3.5-9b qwen3.5-35b-a3b"
  for config in $prompts; do
    lengths="512 2048 8192 32768"
    case $config in xlstm* | mamba*) ;; *) lengths="2048 8192" ;; esac
    for rows in $lengths; do
      # shellcheck disable=SC2046
      "$build/bin/recurve-bench" --json step --device cuda:0 --config "tests/configs/$config.json" \
        --random $(layers_of "$config") --batch 1 --rows "$rows" --seconds 0.3 >>"$out/prompt-$config.json" \
        2>"$out/prompt-$config.log" || { fail "recurve-bench of a prompt of $config"; break; }
    done
  done

  say "the engine next to a step alone"
  "$build/bin/recurve-bench" engine --device cuda:0 --config tests/configs/xlstm-7b.json --random \
    --streams 1,64,256 || fail "recurve-bench engine"

  say "streams while sessions' states move"
  "$build/bin/recurve-bench" sessions --device cuda:0 --config tests/configs/xlstm-7b.json \
    --seconds 3 --rounds 2 || fail "recurve-bench sessions"
}

for part in $parts; do
  case $part in
  tests) run_tests ;;
  drift) run_drift ;;
  measures) run_measures ;;
  esac
done

say "done, ${#failures[@]} failures"
printf '%-20s %6s %9s %9s %9s %9s\n' model batch ms tok/s GB/s '% floor'
for name in "${measured[@]}"; do
  sed -E 's/[{}"]//g' "$out/step-$name.json" | awk -v name="$name" -F, '{
    for (i = 1; i <= NF; ++i) { split($i, pair, ":"); value[pair[1]] = pair[2] }
    printf "%-20s %6d %9.3f %9.0f %9.0f %9.1f\n", name, value["batch"], value["ms"],
           value["tok_per_s"], value["GB_per_s"], value["percent_of_floor"] }'
done
printf '%-20s %6s %9s %9s\n' prompt tokens ms tok/s
for name in $prompts; do
  sed -E 's/[{}"]//g' "$out/prompt-$name.json" | awk -v name="$name" -F, '{
    for (i = 1; i <= NF; ++i) { split($i, pair, ":"); value[pair[1]] = pair[2] }
    printf "%-20s %6d %9.3f %9.0f\n", name, value["rows"], value["ms"], value["tok_per_s"] }'
done
for failure in "${failures[@]}"; do echo "FAILED: $failure"; done
exit $((${#failures[@]} > 0))
