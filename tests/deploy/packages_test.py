"""The server without a compiler, and the C++ client for others' builds: the wheel in a bare virtual
environment, the Debian package where glibc is all there is, the unit before systemd's own checkers,
and find_package(recurve)."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import ROOT
from containers import PAGES, run
from ports import free_port

# Inside a folder as if it were the system, with /proc, by which a program finds its own folder.
INSIDE = ["unshare", "--mount", "sh", "-c",
          'mkdir -p "$0/proc" && mount --bind /proc "$0/proc" && exec chroot $CHROOT "$0" "$@"']

MODEL = ROOT / "weights_tools/demo/xlstm-books"


def answers(server, client):
    """Starts the server, which is given as a command, and asks it by the client's."""
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [*map(str, server), "--model", str(MODEL), "--listen", address, "--threads", "1"],
        stderr=subprocess.PIPE, text=True)
    try:
        run(*client, "--server", address, "health", "--wait", "60")
        text = run(*client, "--server", address, "generate", "--prompt", "Once", "--max-tokens", "4")
        assert text.strip()
    finally:
        process.terminate()
        said = process.communicate()[1]
        assert process.returncode == 0, said


def test_the_wheel_serves_from_a_bare_environment(tree, tmp_path):
    wheels = [pathlib.Path(run(ROOT / "deploy/wheel.sh", tmp_path / folder, tree).strip())
              for folder in ("one", "two")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    run("/usr/bin/python3", "-m", "venv", "--without-pip", tmp_path / "bare")
    bin = tmp_path / "bare/bin"
    pip = [sys.executable, "-m", "pip", "--python", bin / "python", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-index", wheels[0])
    assert run(bin / "recurve-server", "--version").startswith("recurve-server ")
    # Nothing is found but what came with the wheel and glibc.
    there = next((tmp_path / "bare/lib").glob("python*/site-packages/recurve_server"))
    loaded = re.findall(r"=> (/\S+)", run("ldd", there / "bin/recurve-server"))
    outside = [path for path in loaded if not os.path.realpath(path).startswith(str(there))]
    assert all(re.search(r"/(libc|libm|libdl|librt|libpthread|libresolv)\.so", path)
               for path in outside), outside
    answers([bin / "recurve-server"], [bin / "recurve"])
    for page in PAGES:
        assert (tmp_path / "bare/share" / page).exists()
    run(*pip, "uninstall", "--quiet", "--yes", "recurve-server")
    assert not there.exists()


@pytest.fixture(scope="module")
def package(tree, tmp_path_factory):
    """The Debian package, and a folder with what is in it."""
    out = tmp_path_factory.mktemp("deb")
    deb = pathlib.Path(run(ROOT / "deploy/deb.sh", tree, out, cwd=ROOT).strip())
    run("dpkg-deb", "--extract", deb, out / "root")
    return deb, out / "root"


def test_the_debian_package_needs_glibc_alone(package, containers):
    deb, root = package
    needs = run("dpkg-deb", "--field", deb, "Depends").strip()
    glibc = re.fullmatch(r"libc6 \(>= (2\.\d+)\), passwd \| systemd", needs)[1]
    run("dpkg", "--compare-versions", run("dpkg-query", "-W", "-f", "${Version}", "libc6"), "ge", glibc)
    assert (root / "etc/recurve/server.env").exists()
    for page in PAGES:
        where = page.replace("site-functions", "vendor-completions").replace(".1", ".1.gz")
        assert (root / "usr/share" / where).stat().st_size > 1000
    # The folders of the image's base, which has glibc and nothing else, with the package upon them.
    bare = containers.folder / "bare"
    run("cp", "-a", containers.folder / "rootfs", bare)
    run("cp", "-a", f"{root}/.", bare)
    for program in ("recurve-server", "recurve"):
        assert run(*INSIDE, bare, f"/usr/bin/{program}", "--version").startswith(program)


def test_every_variable_of_its_settings_is_a_flags(package):
    _, root = package
    settings = (root / "etc/recurve/server.env").read_text()
    named = re.findall(r"^#(RECURVE_SERVER_\w+)=", settings, re.M)
    help_text = run(root / "usr/bin/recurve-server", "--help")
    assert len(named) > 5
    assert [name for name in named if f"Env:{name}" not in help_text] == []


def test_its_unit_is_sound_and_hardened(package, tmp_path):
    _, root = package
    unit = root / "usr/lib/systemd/system/recurve.service"
    here = tmp_path / "recurve.service"
    # Checked where the program is, which this machine does not have in /usr/bin.
    here.write_text(unit.read_text().replace("/usr/bin/", f"{root}/usr/bin/"))
    said = subprocess.run(["systemd-analyze", "--man=no", "verify", here], text=True,
                          capture_output=True)
    assert (said.returncode, said.stderr) == (0, "")
    run("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20", here)


def test_it_installs_into_a_bare_system(package, bare_system):
    deb, _ = package
    run("cp", deb, bare_system / "recurve.deb")
    run("cp", "-rL", MODEL, bare_system / "srv/model")
    run(*INSIDE, bare_system, "dpkg", "--install", "/recurve.deb")
    assert run(*INSIDE, bare_system, "getent", "passwd", "recurve").startswith("recurve:")
    as_user = ["env", "CHROOT=--userspec=recurve:recurve", *INSIDE, bare_system]
    address = f"127.0.0.1:{free_port()}"
    server = subprocess.Popen(
        [*as_user, "/usr/bin/recurve-server", "--model", "/srv/model", "--listen", address],
        stderr=subprocess.PIPE, text=True)
    try:
        run(*as_user, "/usr/bin/recurve", "--server", address, "health", "--wait", "60")
    finally:
        server.terminate()
        said = server.communicate()[1]
    assert server.returncode == 0, said
    settings = bare_system / "etc/recurve/server.env"
    settings.write_text("RECURVE_SERVER_MODEL=/srv/model\n")
    run(*INSIDE, bare_system, "dpkg", "--force-confold", "--install", "/recurve.deb")
    assert settings.read_text() == "RECURVE_SERVER_MODEL=/srv/model\n"
    run(*INSIDE, bare_system, "dpkg", "--purge", "recurve")
    assert not settings.exists() and not (bare_system / "usr/bin/recurve-server").exists()


def test_the_cpp_client_is_found_as_a_package(tree, tmp_path):
    build = pathlib.Path(os.environ["RECURVE_BIN"]).parent
    run("cmake", "--install", build, "--prefix", tmp_path / "prefix", "--component", "client")
    run("cmake", "-S", ROOT / "clients/cpp/example", "-B", tmp_path / "build", "-G", "Ninja",
        f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    run("cmake", "--build", tmp_path / "build")
    # It is linked with what was installed alone.
    assert str(ROOT) not in (tmp_path / "build/build.ninja").read_text().replace(
        str(ROOT / "clients/cpp/example"), "")
    address = f"127.0.0.1:{free_port()}"
    server = subprocess.Popen([tree / "bin/recurve-server", "--model", MODEL, "--listen", address,
                               "--threads", "1"], stderr=subprocess.DEVNULL)
    try:
        recurve = [tree / "bin/recurve", "--server", address]
        run(*recurve, "health", "--wait", "60")
        prompt = "Once upon a time"
        said = run(*recurve, "generate", "--prompt", prompt, "--temperature", "0", "--max-tokens", "16")
        assert said
        assert run(tmp_path / "build/stream", address, prompt) == said + "\n"
    finally:
        server.terminate()
        assert server.wait() == 0
