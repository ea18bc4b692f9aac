#!/usr/bin/env bash
# Makes a Debian package of an install tree: programs, a systemd unit, the user `recurve`, and
# /etc/recurve/server.env for the flags. Debian 12 or Ubuntu 24.04, and later.
#   RECURVE_CUDA=OFF deploy/install_tree.sh TREE && deploy/deb.sh TREE OUT
#   apt install ./OUT/recurve_*.deb; editor /etc/recurve/server.env; systemctl enable --now recurve
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 2 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
tree=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
version=$("$tree/bin/recurve-server" --version | cut -d' ' -f2)

# What the programs ask of glibc depends on where they were built.
glibc=$(objdump -T "$tree"/bin/* "$tree"/lib/* | grep -o 'GLIBC_2\.[0-9]*' | sort -Vu | tail -1)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/stage control=$work/control
mkdir -p "$control" "$stage"/usr/{bin,lib/recurve/bin,lib/recurve/lib,lib/systemd/system} \
  "$stage"/usr/{lib/sysusers.d,share/doc/recurve} "$stage/etc/recurve"
for program in recurve-server recurve recurve-loadgen; do
  [ -x "$tree/bin/$program" ] || continue
  cp "$tree/bin/$program" "$stage/usr/lib/recurve/bin/"
  ln -s "../lib/recurve/bin/$program" "$stage/usr/bin/$program"
done
cp "$tree"/lib/* "$stage/usr/lib/recurve/lib/"
cp -r "$tree/share" "$stage/usr/"
gzip -9n "$stage"/usr/share/man/man1/*
mv "$stage/usr/share/zsh/site-functions" "$stage/usr/share/zsh/vendor-completions"
cp "$here/deb/recurve.service" "$stage/usr/lib/systemd/system/"
cp "$here/deb/sysusers.conf" "$stage/usr/lib/sysusers.d/recurve.conf"
cp "$here/deb/server.env" "$stage/etc/recurve/"
[ ! -f "$tree/LICENSE" ] || cp "$tree/LICENSE" "$stage/usr/share/doc/recurve/copyright"
cp "$here"/deb/{postinst,prerm,postrm} "$control/"
echo /etc/recurve/server.env >"$control/conffiles"
chmod -R u=rwX,go=rX "$work"
chmod 755 "$control"/{postinst,prerm,postrm}

STAGE=$stage CONTROL=$control VERSION=$version ARCHITECTURE=$(dpkg --print-architecture) OUT=$out GLIBC=${glibc#GLIBC_} \
  cpack --config "$here/deb/CPackConfig.cmake" -B "$out" >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 1; }
rm -rf "$out/_CPack_Packages"
ls "$out"/recurve_*.deb
