"""What recurve-server says where memory or threads do not suffice to start. Not under sanitizers, which reserve
address space themselves.

    RECURVE_BIN=build/release/bin /usr/bin/python3 -m pytest tests/service/short_of_memory.py
"""

import resource
import signal

from starting import started


def test_a_process_without_memory_or_threads_says_so():
    """Wherever the limit is met, there is a sentence; a library may abort."""
    for megabytes in (160, 200, 240, 280, 320):
        limit = (megabytes << 20, megabytes << 20)
        code, said = started("--sandbox", "off", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))
        assert code in (1, -signal.SIGABRT), (megabytes, code, said)
        assert "\nrecurve-server: " in "\n" + said, (megabytes, said)
