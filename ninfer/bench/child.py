"""A server as a child process, for measurements over HTTP."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio

from ninfer.bench.http_client import Refused, Target
from ninfer.errors import StartupError

POLL_S = 0.02
STOP_S = 20.0


@contextmanager
def server(
    options: Sequence[str], request_log: Path, event_log: Path | None
) -> Iterator[tuple[subprocess.Popen[bytes], Target]]:
    """``ninfer-serve`` with these options and logs on a free port; it is told to stop at the end."""
    port = _free_port()
    command = [sys.executable, "-m", "ninfer.serve", *options, "--port", str(port)]
    command += ["--request-log-jsonl", str(request_log)]
    if event_log is not None:
        command += ["--event-log", str(event_log)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr) as process:
        try:
            yield process, Target.of(f"http://127.0.0.1:{port}", None)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def wait_ready(target: Target, process: subprocess.Popen[bytes], timeout_s: float) -> float:
    """Seconds until it serves, from now on; raises StartupError if it ends or takes too long."""
    begun = time.perf_counter()
    with anyio.move_on_after(timeout_s) as scope:
        while not await _is_ready(target):
            if process.poll() is not None:
                raise StartupError(f"the server ended with status {process.returncode} before it was ready")
            await anyio.sleep(POLL_S)
    if scope.cancelled_caught:
        raise StartupError(f"the server was not ready within {timeout_s:.0f} s")
    return time.perf_counter() - begun


async def _is_ready(target: Target) -> bool:
    try:
        await target.get("/health")
    except (OSError, Refused):
        return False
    return True
