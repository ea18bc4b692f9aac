#!/usr/bin/env bash
# Builds the Debian package recurve-tools: weights_tools, which converts, quantizes and inspects checkpoints.
#   deploy/tools_deb.sh OUT        prints the package's path
#   apt install ./OUT/recurve-tools_*.deb && recurve-tools inspect DIR
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 1 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }
source=$here/../weights_tools
mkdir -p "$1"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$source/pyproject.toml")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
modules=$work/usr/lib/python3/dist-packages/weights_tools
mkdir -p "$work"/{DEBIAN,usr/bin,usr/share/doc/recurve-tools,usr/share/man/man1} "$modules/families"
cp "$source"/*.py "$source"/*.jinja "$modules/"
rm "$modules/hatch_build.py"
cp "$source"/families/*.py "$modules/families/"
cp "$here/../LICENSE" "$work/usr/share/doc/recurve-tools/copyright"
cat >"$work/usr/bin/recurve-tools" <<'END'
#!/usr/bin/python3
import sys

from weights_tools.__main__ import main

if __name__ == "__main__":  # processes that quantize starts read this file too
    sys.exit(main())
END
# The manual page has what --help prints, for which the modules are read: this needs python3-numpy too.
(cd "$source/.." && COLUMNS=80 PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 - <<'END'
import contextlib
import io
import sys

from weights_tools.__main__ import COMMANDS, run

sys.argv[0] = "recurve-tools"


def help_of(*arguments):
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        run([*arguments, "--help"])
    lines = text.getvalue().replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join("\\&" + line for line in lines)


print(".TH RECURVE\\-TOOLS 1\n.SH NAME\nrecurve\\-tools \\- convert, quantize and inspect checkpoints for Recurve")
for title, arguments in [("SYNOPSIS", []), *((name.upper(), [name]) for name in COMMANDS)]:
    print(f".SH {title}\n.nf\n{help_of(*arguments)}\n.fi")
END
) | gzip -9n >"$work/usr/share/man/man1/recurve-tools.1.gz"
cat >"$work/DEBIAN/control" <<END
Package: recurve-tools
Version: $version
Architecture: all
Maintainer: Recurve <recurve@localhost>
Section: science
Priority: optional
Depends: python3 (>= 3.11), python3-numpy
Suggests: recurve, python3-torch, python3-sentencepiece
Description: tools for checkpoints of recurrent language models
 Converts, quantizes, inspects and trains checkpoints for Recurve, the
 inference server for recurrent language models.
END
chmod -R u=rwX,go=rX "$work"
chmod 755 "$work/usr/bin/recurve-tools"
deb=$(realpath "$1")/recurve-tools_${version}_all.deb
dpkg-deb --root-owner-group --build "$work" "$deb" >/dev/null
echo "$deb"
