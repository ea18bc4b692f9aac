#!/usr/bin/env bash
# Builds the server with CUDA and makes a folder that runs on another Linux machine of the same
# kind, wherever it is put: programs in bin/, in lib/ every shared library they need but those of
# glibc (2.36 or later there) and of NVIDIA's driver, configs of public models in configs/, manual pages
# and completions of shells in share/.
#   deploy/install_tree.sh OUT [--archive FILE.tar.xz] [--built FOLDER]
#   OUT/bin/recurve-server --model DIR --device cuda:0
# RECURVE_CUDA=OFF in the environment: for the CPU alone. --built: nothing is compiled; the tree is
# of the programs that this build folder has.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n 's/^# \{0,1\}//p' "$0" | sed -n 2,10p >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
archive="" built=""
build=${RECURVE_BUILD:-build/release}
while [ $# -gt 0 ]; do
  case $1 in
    --archive) archive=$(realpath "${2:?--archive wants a file}") ;;
    --built) built=1 build=${2:?--built wants a folder} ;;
    *) echo "error: $1 is no option of this" >&2; exit 2 ;;
  esac
  shift 2
done

programs=(recurve-server recurve recurve-bench recurve-smoke recurve-loadgen)
if [ -n "$built" ]; then
  wanted=("${programs[@]}") programs=()
  for program in "${wanted[@]}"; do
    [ ! -x "$build/bin/$program" ] || programs+=("$program")
  done
  [ ${#programs[@]} -gt 0 ] || { echo "error: no program in $build/bin: build it first" >&2; exit 1; }
else
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DRECURVE_TESTS=ON \
    -DRECURVE_CUDA="${RECURVE_CUDA:-ON}" >/dev/null
  cmake --build "$build" --target "${programs[@]}" -j "${RECURVE_JOBS:-$(nproc)}"
fi

rm -rf "${out:?}"/{bin,lib,share,configs}
mkdir -p "$out/bin" "$out/lib" "$out/configs"
# What the system has everywhere, and must match its own loader or driver.
not_carried='^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libutil|libcuda|libnvidia-[a-z]+)\.so'
for program in "${programs[@]}"; do
  ldd "$build/bin/$program" | awk '$2 == "=>" { print $1, $3 }' |
    while read -r name path; do
      [[ $name =~ $not_carried ]] && continue
      [ "$path" != "not" ] || { echo "error: $program needs $name, which is not here" >&2; exit 1; }
      cp -Lu "$path" "$out/lib/$name"
    done
done
chmod 644 "$out"/lib/*
strip --strip-unneeded "$out"/lib/*
for program in "${programs[@]}"; do
  cmake --install "$build" --prefix "$out" --strip --component "$program" >/dev/null
done
cp tests/configs/*.json "$out/configs/"
cp LICENSE README.md tests/smoke.sh "$out/"
install -Dm644 deploy/README.md "$out/deploy/README.md"
install -Dm644 deploy/SECURITY.md "$out/deploy/SECURITY.md"

# Nothing may be found outside the tree.
for program in "${programs[@]}"; do
  outside=$(ldd "$out/bin/$program" | awk '$2 == "=>" { print $1, $3 }' | grep -v " $out/" |
    grep -Ev "$not_carried" || true)
  [ -z "$outside" ] || { echo "error: $program takes from outside: $outside" >&2; exit 1; }
done
if [ -n "$archive" ]; then
  tar -C "$out" -cJf "$archive" .
  echo "$(du -h "$archive" | cut -f1) $archive"
fi
echo "$(du -sh "$out" | cut -f1) $out"
