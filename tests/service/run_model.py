"""`recurve run`: server and chat in one. ctest runs this with RECURVE_BIN set to the folder of recurve-server and recurve; by hand:

    RECURVE_BIN=build/release/bin /usr/bin/python3 -m pytest tests/service/run_model.py
"""

import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess

import pytest
from keyed_server import BIN, MODEL, of_command_line

RUN = [BIN / "recurve", "run", MODEL, "-n", "8", "-t", "0"]
SERVER = ["--", "--threads", "1", "--slots", "2"]


def run(*arguments, typed="", **options):
    return subprocess.run([*map(str, arguments)], input=typed, text=True, capture_output=True, timeout=120,
                          env=of_command_line(), **options)


def children(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_end(pid):
    """Of a process that is no child of this one."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(handle):
        assert select.select([handle], [], [], 60)[0], f"process {pid} is still there"


def test_a_chat_has_its_server():
    done = run(*RUN, *SERVER, typed="Once upon a time\nand\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) >= 2


@pytest.mark.parametrize("arguments, code, sentence", [
    (["/no/such/model"], 1, "recurve-server: /no/such/model: wanted the directory of a model"),
    ([MODEL, "--", "--slotss", "2"], 2, "recurve-server: unknown flag --slotss; did you mean --slots?"),
    ([], 2, "recurve: MODEL_DIR is required"),
])
def test_why_it_does_not_start_is_shown(arguments, code, sentence):
    done = run(BIN / "recurve", "run", *arguments, typed="not sent\n")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(sentence)


def test_the_end_of_the_server_ends_the_chat():
    chat = subprocess.Popen([*RUN, *SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env=of_command_line())
    chat.stdin.write("Once\n")
    chat.stdin.flush()
    assert chat.stdout.readline()
    server, = children(chat.pid)
    os.kill(server, signal.SIGKILL)
    said = chat.communicate("Again\n", timeout=60)[1]
    assert (chat.returncode, "recurve: the server was ended by signal 9" in said) == (1, True)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_server_ends_with_the_program(sent):
    chat = subprocess.Popen([*RUN, *SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env=of_command_line())
    chat.stdin.write("Once\n")
    chat.stdin.flush()
    assert chat.stdout.readline()
    server, = children(chat.pid)
    chat.send_signal(sent)
    assert chat.wait(timeout=60) == -sent
    wait_for_end(server)


@pytest.fixture
def loading(tmp_path):
    """The client next to no server, and in PATH one that loads until it gets SIGTERM."""
    shutil.copy(BIN / "recurve", tmp_path / "recurve")
    (tmp_path / "in_path").mkdir()
    server = tmp_path / "in_path/recurve-server"
    progress = json.dumps({"event": "text", "text": "loading weights  40% of 7.0 GiB"})
    server.write_text(f"""#!/bin/sh
trap 'echo ended >{tmp_path}/ended; exit 0' TERM
echo '{progress}'
mkfifo {tmp_path}/never
read nothing <>{tmp_path}/never
""")
    server.chmod(0o755)
    return tmp_path


def terminal_until(process, master, *texts):
    """What it shows until it has shown these one after the other."""
    shown = ""
    while not re.search(".*".join(map(re.escape, texts)), shown, re.DOTALL):
        shown += os.read(master, 4096).decode()
    return shown


def test_a_terminal_shows_the_progress_and_ctrl_c_ends_loading(loading):
    master, slave = pty.openpty()
    environment = dict(of_command_line(), PATH=f"{loading}/in_path:/usr/bin:/bin")
    chat = subprocess.Popen([loading / "recurve", "run", "anything"], stdin=slave, stdout=slave, stderr=slave,
                            env=environment, start_new_session=True)
    os.close(slave)
    terminal_until(chat, master, "loading weights  40% of 7.0 GiB")
    server, = children(chat.pid)
    chat.send_signal(signal.SIGINT)
    assert chat.wait(timeout=60) == 130
    wait_for_end(server)
    assert (loading / "ended").exists()


def test_a_terminal_shows_the_addresses():
    master, slave = pty.openpty()
    chat = subprocess.Popen([*RUN, *SERVER], stdin=slave, stdout=slave, stderr=slave,
                            env=of_command_line(), start_new_session=True)
    os.close(slave)
    shown = terminal_until(chat, master, "/help lists commands", "> ")  # from there on it takes keys
    url, = re.findall(r"http://127.0.0.1:\d+/", shown)
    assert "SERVING" not in shown
    assert run("curl", "-sS", url + "health").returncode == 0
    os.write(master, b"\x04")
    assert chat.wait(timeout=60) == 0


def test_a_terminal_shows_how_much_of_a_long_prompt_is_absorbed(tmp_path):
    (tmp_path / "prompt").write_text("It was a dark night. " * 300)
    master, slave = pty.openpty()
    with open(tmp_path / "out", "w") as out:
        chat = subprocess.Popen([*RUN, *SERVER], stdin=open(tmp_path / "prompt"), stdout=out, stderr=slave,
                                env=of_command_line(), start_new_session=True)
    os.close(slave)
    shown = terminal_until(chat, master, "tokens of the prompt are absorbed")
    try:
        while more := os.read(master, 4096):
            shown += more.decode()
    except OSError:  # the terminal is closed with the last program on it
        pass
    assert chat.wait(timeout=60) == 0
    found = [(int(done), int(total)) for done, total in re.findall(r"(\d+) of (\d+) tokens of the prompt", shown)]
    assert [done for done, _ in found] == sorted({done for done, _ in found})
    assert {total for _, total in found} == {found[0][1]} and found[-1][0] < found[0][1]
    assert re.search(r"absorbed\r +\r$", shown) and (tmp_path / "out").read_text().strip()


def test_without_a_server_the_sentence_says_where_it_was_looked_for(loading):
    done = run(loading / "recurve", "run", "anything")
    assert (done.returncode, done.stderr) == (1, "recurve: recurve-server is neither next to recurve nor in PATH\n")
