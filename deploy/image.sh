#!/usr/bin/env bash
# Builds the container image of an install tree, with buildah, or docker where that is not there, and
# prints its size and what is in it.
#   deploy/image.sh TREE [--tag NAME] [--base IMAGE] [--device cuda:0] [--model DIR]
#   RECURVE_CUDA=OFF deploy/install_tree.sh tree && deploy/image.sh tree --model weights_tools/demo/xlstm-books
#   docker run --rm -p 8000:8000 -p 50051:50051 --read-only --cap-drop all --stop-timeout 40 recurve
# --device: what the server computes on unless told; cuda:0 for a tree that was built with CUDA.
# --model: a checkpoint for the image to carry; without it, one is to be mounted at /model.
# BUILDAH_FLAGS in the environment go to buildah before its command, BUILD_FLAGS to the build. A tree
# gives the same layers whenever it is packed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -ge 1 ] || usage
tree=$(realpath "$1")
shift
[ -x "$tree/bin/recurve-server" ] ||
  { echo "error: no bin/recurve-server in $tree: make it with deploy/install_tree.sh" >&2; exit 1; }
tag=recurve base=docker.io/library/debian:bookworm-slim device=cpu model=""
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case $1 in
    --tag) tag=$2 ;;
    --base) base=$2 ;;
    --device) device=$2 ;;
    --model) model=$(realpath "$2") ;;
    *) usage ;;
  esac
  shift 2
done

# "recurve-server 0.1.0+3 (0123456789ab)"
said=$("$tree/bin/recurve-server" --version)
version=$(cut -d' ' -f2 <<<"$said") revision=$(sed -n 's/.*(\(.*\))/\1/p' <<<"$said")
# Of everything in the image the time is that of the commit, where it is known.
created=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct "${revision:-HEAD}" 2>/dev/null || echo 0)}

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
mkdir -p "$context/tree/bin" "$context/tree/lib" "$context/model" "$context/state"
cp "$tree"/bin/recurve-server "$tree"/bin/recurve "$context/tree/bin/"
for program in recurve-server recurve; do
  ldd "$tree/bin/$program" | awk -v tree="$tree/" '$2 == "=>" && index($3, tree) == 1 { print $1 }'
done | sort -u | while read -r library; do cp "$tree/lib/$library" "$context/tree/lib/"; done
for program in recurve-server recurve; do # manual pages and completions
  (cd "$tree" && find share -type f \( -name "$program" -o -name "_$program" -o -name "$program.*" \) \
    -exec cp --parents -t "$context/tree" {} +)
done
[ ! -f "$tree/LICENSE" ] || cp "$tree/LICENSE" "$context/tree/"
/usr/bin/python3 "$here/sbom.py" "$context/tree" --version "$version" --created "$created" \
  >"$context/tree/sbom.spdx.json"
[ -z "$model" ] || cp -RL "$model/." "$context/model/"
cp "$here/Containerfile" "$context/"
chmod -R u=rwX,go=rX "$context"
find "$context" -exec touch -h -d "@$created" {} +

arguments=(--build-arg "BASE=$base" --build-arg "VERSION=$version"
  --build-arg "REVISION=${revision:-unknown}" --build-arg "DEVICE=$device"
  --build-arg "NAME=${model##*/}" --tag "$tag"
  --file "$context/Containerfile")
if command -v buildah >/dev/null; then
  # Docker's format: OCI's knows no HEALTHCHECK.
  # shellcheck disable=SC2086
  buildah ${BUILDAH_FLAGS:-} build --format docker --timestamp "$created" ${BUILD_FLAGS:-} \
    "${arguments[@]}" "$context"
else
  # shellcheck disable=SC2086
  SOURCE_DATE_EPOCH=$created docker build ${BUILD_FLAGS:-} "${arguments[@]}" "$context"
fi
echo "$tag: Recurve $version, ${revision:-unknown}"
(cd "$context" && du -sh --apparent-size tree model && du -ah --apparent-size tree | sort -rh | sed -n 2,16p)
bytes=$(du -sb "$context/tree" | cut -f1)
echo "without its base: $(((bytes + 999999) / 1000000)) MB without the model"
