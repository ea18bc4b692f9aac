"""More idle connections than the server's limit of open files."""

import socket
import time

FLAGS = []
FILES = 256
SHORT = {"connections": 400, "hold_seconds": 1}
FULL = {"connections": 2000, "hold_seconds": 15}


def attack(address, connections, hold_seconds):
    host, port = address.rsplit(":", 1)
    sockets = []
    for i in range(connections):
        one = socket.socket()
        one.bind((f"127.0.0.{2 + i % 8}", 0))
        one.settimeout(2)
        try:
            one.connect((host, int(port)))
        except OSError:
            pass  # refused
        sockets.append(one)
    time.sleep(hold_seconds)
    for one in sockets:
        one.close()
    return f"{connections} connections from 8 addresses, with a limit of {FILES} open files"


def check(result, size):
    if result.new_client_seconds > 5:
        yield f"a new client had to wait for {result.new_client_seconds:.1f} s, wanted under 5"
    if result.during.errors or result.during.p99() > 0.5:
        yield f"a client connected before got {result.during}, wanted under 500 ms"
