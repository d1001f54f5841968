"""The folder of slot files: its names, what may be opened in it, what a killed process leaves behind."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ninfer.errors import InvalidFilename

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
# No slot file begins with a dot, so no temporary name is the name of one.
TEMPORARY = re.compile(r"\.[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}\.[0-9a-f]{16}\.tmp")


def check_filename(name: object) -> str:
    """The name, if it is one of a slot file; raises InvalidFilename (serving spec, 15.1)."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise InvalidFilename
    return name


def temporary_name(filename: str) -> str:
    """A name for a file that is to become `filename`; never the same twice."""
    return f".{filename}.{secrets.token_hex(8)}.tmp"


@contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """A descriptor of the folder. The folder itself may be reached through links: the operator named it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def kind_fault(mode: int) -> str | None:
    """Why something of this mode is not a slot file, or None."""
    if stat.S_ISLNK(mode):
        return "it is a link, and links are not followed"
    return None if stat.S_ISREG(mode) else "it is not a regular file"


def lock(descriptor: int) -> bool:
    """Whether this process now holds the file as its own. The lock goes with the process, however that ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def clean_folder(folder: Path) -> int:
    """Remove temporary files that no process is writing any more; returns how many. Raises OSError.

    Called before the first save. Another server may be saving into the same folder: its files are locked, and stay.
    """
    removed = 0
    with opened_folder(folder) as directory:
        for name in os.listdir(directory):
            if TEMPORARY.fullmatch(name) is None:
                continue
            with suppress(FileNotFoundError):  # renamed or removed by its owner since it was listed
                removed += _remove_stale(directory, name)
    return removed


def _remove_stale(directory: int, name: str) -> bool:
    if kind_fault(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode) is not None:
        return False
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        if not lock(descriptor):
            return False
        os.unlink(name, dir_fd=directory)
    finally:
        os.close(descriptor)
    return True
