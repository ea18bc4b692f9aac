# Sourced by deploy/demo.sh and tests/run.sh: what they need from Debian or Ubuntu, and how to get it.
# shellcheck shell=bash disable=SC2034

# To build and run the server and the clients.
build_packages="ca-certificates ccache cmake g++ ninja-build pkg-config
  libboost-dev libgrpc++-dev libgrpc-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libcjose-dev libcli11-dev libcurl4-openssl-dev libedit-dev libfmt-dev libhwy-dev libjansson-dev libjs-marked libpcre2-dev libseccomp-dev
  libspdlog-dev libssl-dev libtomlplusplus-dev libutf8proc-dev libxxhash-dev nlohmann-json3-dev prometheus-cpp-dev python3-venv"

# To run the tests too.
test_packages="clang-19 clang-format-19 curl fish git iproute2 libclang-rt-19-dev libgmock-dev libgtest-dev
  libsentencepiece-dev lld-19 llvm-19 nghttp2-client nginx-light man-db openssl
  python3 python3-cryptography python3-grpcio python3-jwt python3-numpy python3-protobuf
  python3-pytest python3-sentencepiece python3-xxhash sslscan zsh"
# What deploy/ is for, and what checks it.
test_packages+=" buildah podman prometheus runc shellcheck systemd"
# Ubuntu has no Chromium but a snap: there tests/page/run.sh takes playwright's.
[ "$(. /etc/os-release && echo "$ID")" != debian ] || test_packages+=" chromium-headless-shell"

# install_packages NAME...: installs those that are missing, as root or through sudo.
install_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed ||
      missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if ! command -v apt-get >/dev/null; then
    echo "error: missing ${missing[*]}, and this is no Debian or Ubuntu: install them by hand" >&2
    return 1
  fi
  local as_root=""
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "error: missing ${missing[*]}: run as root: apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=sudo
  fi
  echo "installing ${missing[*]}"
  local log
  log=$(mktemp)
  if ! { $as_root apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends \
      "${missing[@]}"; } >"$log" 2>&1; then
    tail -20 "$log" >&2
    echo "error: apt-get could not install ${missing[*]}; its last words are above" >&2
    return 1
  fi
  rm -f "$log"
}
