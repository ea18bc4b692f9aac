"""Images and containers in separate folders, with buildah and podman, in a sandbox too: runc, no
systemd, the network of the host."""

import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).parents[2]

PAGES = ["man/man1/recurve.1", "man/man1/recurve-server.1", "bash-completion/completions/recurve",
         "zsh/site-functions/_recurve", "fish/vendor_completions.d/recurve.fish"]

# Without these, containers ask for more than a sandbox may give.
LIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]


def run(*command, **options):
    """What the command prints; its errors are in the exception where it fails."""
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True, **options)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def assert_listens(tree, variables):
    """A server with these variables may listen where they say: it gets as far as to files that are not
    here."""
    ports = {name: re.sub(r":\d+$", ":0", value) for name, value in variables.items()
             if name.removeprefix("RECURVE_SERVER_") in ("LISTEN", "HTTP", "METRICS")}
    done = subprocess.run(
        [tree / "bin/recurve-server", "--model", ROOT / "weights_tools/demo/parity-gru",
         "--state-dir", "/proc/nothing"],
        text=True, capture_output=True, env=os.environ | variables | ports)
    assert done.returncode == 1, done.stderr
    assert "other machines" not in done.stderr, done.stderr
    assert re.search("/proc/nothing|/keys/|/tls/|--state-store s3://", done.stderr), done.stderr


class Containers:
    """Images and containers below a folder, which close() takes away."""

    def __init__(self, folder: pathlib.Path):
        self.storage = ["--storage-driver", "vfs", "--root", str(folder / "storage"),
                        "--runroot", str(folder / "run")]
        self.tmp = folder / "tmp"
        self.folder = folder

    def podman(self, *arguments, **options):
        return run("podman", *self.storage, "--tmpdir", self.tmp, "--runtime", "runc",
                   "--cgroup-manager", "cgroupfs", *arguments, **options)

    def buildah(self, *arguments):
        return run("buildah", *self.storage, *arguments)

    def missing(self):
        """What keeps containers from running here, in words; nothing if nothing does."""
        for program in ("buildah", "podman", "runc"):
            if shutil.which(program) is None:
                return f"{program} is not installed"
        if os.geteuid() != 0:
            return "images are built as root here"
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
            return "this sandbox gives root no namespace of mounts"
        return None

    def make_base(self, name):
        """An image of glibc alone, as the machine has it: no shell, no user, no other program."""
        rootfs = self.folder / "rootfs"
        # Debian's merged folders: what the package calls /lib is in /usr/lib.
        for folder in ("lib", "lib64"):
            (rootfs / "usr" / folder).mkdir(parents=True)
            (rootfs / folder).symlink_to(f"usr/{folder}")
        for line in run("dpkg-query", "-L", "libc6").splitlines():
            path = pathlib.Path(line)
            if "/share/" in line or path.is_dir():
                continue
            target = rootfs / ("usr" + line if not line.startswith("/usr/") else line[1:])
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", container, rootfs, "/")
        self.buildah("commit", container, name)
        self.buildah("rm", container)

    def build(self, script, tree, *arguments, tag, base):
        environment = os.environ | {"BUILDAH_FLAGS": " ".join(self.storage),
                                    "BUILD_FLAGS": "--isolation chroot --no-cache"}
        return run(script, tree, "--tag", tag, "--base", base, *arguments, env=environment)

    def close(self):
        self.podman("rm", "--all", "--force", "--time", "0")
        shutil.rmtree(self.folder, ignore_errors=True)
