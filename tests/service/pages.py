"""The manual pages and completions that the programs print, in the real shells and before man. ctest runs this with RECURVE_BIN set to the folder of the programs; by hand:

    RECURVE_BIN=build/release/bin /usr/bin/python3 -m pytest tests/service/pages.py
"""

import os
import pathlib
import pty
import re
import select
import shutil
import subprocess

import pytest

BIN = pathlib.Path(os.environ["RECURVE_BIN"])
PROGRAMS = ["recurve", "recurve-server", "recurve-loadgen"]

# What is typed before Tab, and what the line is after it.
COMPLETIONS = [
    ("recurve gen", "recurve generate"),
    ("recurve session rew", "recurve session rewind"),
    ("recurve --timeout 5 keys state ro", "recurve --timeout 5 keys state rotate"),
    ("recurve chat --syst", "recurve chat --system"),
    ("recurve session open --time", "recurve session open --timeout"),  # a flag of the program
    ("recurve ask --session chat --no-such --syst", "recurve ask --session chat --no-such --system"),
    ("recurve embed --pooling me", "recurve embed --pooling mean"),
    ("recurve embed --pooling=me", "recurve embed --pooling=mean"),
    ("recurve keys new --role obs", "recurve keys new --role observer"),
    ("recurve ask --tools a_fi", "recurve ask --tools a_file.json"),
    ("recurve ask --max-tokens a_fi", "recurve ask --max-tokens a_fi"),
    ("recurve run a_fo", "recurve run a_folder/"),
    ("recurve-server --kv b", "recurve-server --kv bf16"),
    ("recurve-server a_fo", "recurve-server a_folder/"),
    ("recurve-server --insec", "recurve-server --insecure-network"),
    ("recurve-loadgen --arriv", "recurve-loadgen --arrivals"),
]


def page(program, kind):
    done = subprocess.run([BIN / program, "--print-page", kind], text=True, capture_output=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def needs(program):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a_file.json").touch()
    (tmp_path / "a_folder").mkdir()
    (tmp_path / "pages").mkdir()
    return tmp_path


class Terminal:
    """A shell that reads keys. Programs only print their command line."""

    def __init__(self, command, folder, setup):
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb", "LC_ALL": "C.UTF-8"}
        pid, self.fd = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environment)
        self.shown = ""
        for program in PROGRAMS:
            setup += f"; {program}() {{ echo \"<{program} $*>\"; }}"
        (folder / "setup").write_text(setup + "\nPS1=\n")
        self.type(". ./setup; echo rea''dy\r")
        self.wait_for("ready\r\n")

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def wait_for(self, pattern):
        while not (found := re.search(pattern, self.shown)):
            assert select.select([self.fd], [], [], 30)[0], f"{pattern}: not in {self.shown!r}"
            self.shown += os.read(self.fd, 4096).decode()
        self.shown = self.shown[found.end():]
        return found

    def completed(self, line):
        self.type(line + "\t\r")
        return self.wait_for(r"<([^>$]*?) ?>")[1]


@needs("bash")
def test_bash_completes(folder):
    sources = []
    for program in PROGRAMS:
        (folder / "pages" / program).write_text(page(program, "bash"))
        sources.append(f". pages/{program}")
    shell = Terminal(["bash", "--norc", "--noprofile"], folder, "; ".join(sources))
    assert {typed: shell.completed(typed) for typed, _ in COMPLETIONS} == dict(COMPLETIONS)


@needs("zsh")
def test_zsh_completes(folder):
    for program in PROGRAMS:
        (folder / "pages" / f"_{program}").write_text(page(program, "zsh"))
    shell = Terminal(["zsh", "-f"], folder,
                     "fpath=($PWD/pages $fpath); autoload -Uz compinit; compinit -u -D; unsetopt promptsp autoremoveslash")
    assert {typed: shell.completed(typed) for typed, _ in COMPLETIONS} == dict(COMPLETIONS)


@needs("fish")
def test_fish_completes(folder):
    sources = "; ".join(f"source {folder}/pages/{program}.fish" for program in PROGRAMS)
    for program in PROGRAMS:
        (folder / "pages" / f"{program}.fish").write_text(page(program, "fish"))
    for typed, line in COMPLETIONS:
        done = subprocess.run(["fish", "--no-config", "-c", f"{sources}; complete -C '{typed}'"], cwd=folder,
                              text=True, capture_output=True, env={**os.environ, "HOME": str(folder)})
        found = [one.partition("\t")[0] for one in done.stdout.splitlines()]
        assert done.stderr == ""
        last = line.rpartition(" ")[2]
        assert found == ([last] if line != typed else []), (typed, found)


@needs("man")
@pytest.mark.parametrize("program", PROGRAMS)
def test_man_shows_every_flag_and_warns_of_nothing(program, tmp_path):
    file = tmp_path / f"{program}.1"
    file.write_text(page(program, "man"))
    shown = subprocess.run(["man", "--warnings", "--encoding=UTF-8", "--local-file", file], text=True, capture_output=True,
                           env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MANROFFOPT": "-ww"})
    assert (shown.returncode, shown.stderr) == (0, "")
    text = re.sub(".\b", "", shown.stdout)
    help_text = subprocess.run([BIN / program, "--help"], text=True, capture_output=True).stdout
    flags = set(re.findall(r"^  (?:-\w,)?(--[a-z0-9-]+)", help_text, re.M))
    assert len(flags) > 6 and [flag for flag in flags if flag not in text] == []
    if program == "recurve":
        assert "session rewind" in text and "--rewind-tokens" in text and "130  interrupted" in text
    if program == "recurve-server":
        assert re.search(r"--kv bf16\|f32\n.*\n *Default: bf16\n *Environment: RECURVE_SERVER_KV\n", text)
    assert "--print-page" not in text + help_text


def test_the_pages_are_installed(tmp_path):
    build = BIN.resolve().parent
    for program in PROGRAMS:
        subprocess.run(["cmake", "--install", build, "--prefix", tmp_path, "--component", program], check=True,
                       capture_output=True)
        installed = {"man": f"man/man1/{program}.1", "bash": f"bash-completion/completions/{program}",
                     "zsh": f"zsh/site-functions/_{program}", "fish": f"fish/vendor_completions.d/{program}.fish"}
        for kind, path in installed.items():
            assert (tmp_path / "share" / path).read_text() == page(program, kind)
