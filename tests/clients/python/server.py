"""The server as a process."""

import os
import pathlib
import re
import subprocess
import threading

BIN = pathlib.Path(os.environ.get("RECURVE_BIN", "."))


class Server:
    """Serves a model on a port of its own from `with` to the end of the block."""

    def __init__(self, model, *flags):
        self._command = [BIN / "recurve-server", "--model", model]
        if "--listen" not in flags:
            self._command += ["--listen", "127.0.0.1:0"]
        if "--slots" not in flags:
            self._command += ["--slots", "8"]
        self._command += ["--threads", "1", "--ttft-ms", "0", *flags]

    def __enter__(self):
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        self._log = []
        self._ends_with = 0
        self.address = self._port_of("serving")
        if "--http" in self._command:
            self.http_address = self._port_of("serving_http")
        self._reader = threading.Thread(target=lambda: self._log.extend(self.process.stderr))
        self._reader.start()
        return self

    def _port_of(self, event):
        """The address that the log names with that event, once it does."""
        for line in self.process.stderr:
            self._log.append(line)
            found = re.search(rf"event={event} .*port=(\d+)", line)
            if found:
                return f"127.0.0.1:{found[1]}"
        raise AssertionError("".join(self._log))

    def kill(self):
        """As a machine that goes away."""
        self.process.kill()
        self._ends_with = -9

    def __exit__(self, *reason):
        self.process.terminate()
        status = self.process.wait()
        self._reader.join()
        self.process.stderr.close()
        assert status == self._ends_with, "".join(self._log)
