"""The command as a process of its own: a real server on a port of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """A running server; `wait_for` reads its console."""

    def __init__(self, *arguments: str) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "ninfer.serve", *arguments, "--port", str(self.port)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self.console = ""

    def wait_for(self, text: str) -> None:
        assert self.process.stderr is not None
        while text not in self.console:
            line = self.process.stderr.readline()
            assert line, f"the server ended: {self.console}"
            self.console += line

    def end(self) -> int:
        """Wait for the end; returns the exit status."""
        assert self.process.stderr is not None
        self.console += self.process.stderr.read()
        self.process.stderr.close()
        return self.process.wait(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"
