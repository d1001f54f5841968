"""``ninfer-serve``: the command line, the port, and the exit status (serving spec, 1).

What a wrong option or a busy port needs is imported here; everything else only when the port is ours.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import structlog

from ninfer.config import Settings
from ninfer.console import configure_console
from ninfer.embedded import ARTIFACT
from ninfer.errors import ArtifactError, StartupError
from ninfer.listener import bind_socket
from ninfer.options import HelpRequested, OptionError, VersionRequested, cautions, parse, usage
from ninfer.version import VERSION

CUDA_SYNC_WORDS = ("spin", "blocking", "yield", "auto")
STARTUP_STATUS = 1
# Everything that has to be written is written; a thread that is about to end may.
WORKERS_S = 0.5

log = structlog.get_logger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    try:
        settings = parse(sys.argv[1:] if argv is None else argv)
        cuda_sync = _cuda_sync(os.environ.get("NINFER_CUDA_SYNC", CUDA_SYNC_WORDS[0]))
    except HelpRequested:
        sys.stdout.write(usage())
        return 0
    except VersionRequested:
        sys.stdout.write(f"ninfer-serve {VERSION}\n")
        return 0
    except OptionError as error:
        sys.stderr.write(f"error: {error}\n\n{usage()}")
        return STARTUP_STATUS
    configure_console(settings.log.level)
    try:
        with _stopping_at_once():
            status = _run(settings, cuda_sync)
    except (ArtifactError, StartupError) as error:
        sys.stderr.write(f"error: {error}\n")
        return STARTUP_STATUS
    _leave_workers_behind(status)
    return status


def _leave_workers_behind(status: int) -> None:
    """End the process now if threads are left that work for requests which have ended; Python would wait for them."""
    give_up_at = time.monotonic() + WORKERS_S
    main_thread = threading.main_thread()
    workers = [thread for thread in threading.enumerate() if thread is not main_thread and not thread.daemon]
    for worker in workers:
        worker.join(max(0.0, give_up_at - time.monotonic()))
    if any(worker.is_alive() for worker in workers):
        sys.stderr.flush()
        os._exit(status)


@contextmanager
def _stopping_at_once() -> Iterator[None]:
    """A stop before the server listens to signals of its own: there is nothing to drain yet."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(0)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cuda_sync(word: str) -> str:
    if word not in CUDA_SYNC_WORDS:
        raise OptionError(f"NINFER_CUDA_SYNC must be one of {', '.join(CUDA_SYNC_WORDS)}")
    return word


def _run(settings: Settings, cuda_sync: str) -> int:
    with bind_socket(settings.http.host, settings.http.port) as listener:
        for caution in cautions(settings):
            log.warning(caution)
        if settings.default_artifact:
            settings = replace(settings, artifact=ARTIFACT)
        if not settings.artifact.is_file():
            raise StartupError(f"the model {settings.artifact} is not a file")
        # The numeric libraries take seconds to import: a busy port is reported before that.
        from ninfer.server import run_server

        return run_server(settings, listener, cuda_sync)


if __name__ == "__main__":
    sys.exit(main())
