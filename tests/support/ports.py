"""Ports of this machine for servers that cannot be asked which they took."""

import random
import socket

_kept = []


def _keeps(port):
    """Whether nothing listens there, and no other test has it: a name is this process's while it runs."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0recurve-test-port-{port}")
        with socket.create_server(("127.0.0.1", port)):
            pass
    except OSError:
        name.close()
        return False
    _kept.append(name)
    return True


def free_ports(count, neighbour=0):
    """`count` ports of 127.0.0.1 that are this process's until it ends, as are their neighbours so far above them.
    The kernel gives those of its range to every program that connects, so these are below it."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        end = int(file.read().split()[0])
    if end < 30000:  # too few are below it
        end = 55000
    found, chance = [], random.SystemRandom()
    while len(found) < count:
        port = chance.randrange(10000, end - neighbour)
        if _keeps(port) and (not neighbour or _keeps(port + neighbour)):
            found.append(port)
    return found


def free_port():
    return free_ports(1)[0]
