"""``--web-dir``: the files of a folder where no route is, for a page of one's own (serving spec, 24).

What is asked for is a path of plain names; whatever it leads to has to lie inside the folder when all links are
followed. The folder may change while it is served.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from anyio import to_thread
from quart import Quart, Response, request
from werkzeug.exceptions import NotFound

from ninfer.api.edge import exchange_of
from ninfer.errors import StartupError

INDEX = "index.html"
# Where a mistake of a client is told as such, instead of showing it the page. The last one is ours.
API_PREFIXES = (
    *("/v1/", "/slots", "/metrics", "/stats", "/health", "/telemetry", "/events", "/props"),
    "/requests/",
)
# Names below `/assets/` change with their content; everything else is asked for again.
FOREVER = "public, max-age=31536000, immutable"
ANEW = "no-cache"
PIECE_BYTES = 256 * 1024

Found = Callable[[], Coroutine[Any, Any, Response | None]]

# Not the system's table: an answer must not depend on the machine.
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".gif": "image/gif",
    ".htm": "text/html; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/vnd.microsoft.icon",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".map": "application/json",
    ".md": "text/markdown; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
    ".xml": "application/xml",
}


@dataclass(frozen=True, slots=True)
class WebFile:
    """An open file of the folder, whose holder closes it; `length` is its size when it was opened, in bytes."""

    name: str
    file: BinaryIO
    length: int


class WebFolder:
    """The folder that `--web-dir` names. Its methods block.

    raises StartupError for a folder without an ``index.html`` that can be read
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._root = folder.resolve(strict=True)
        except OSError as error:
            raise StartupError(f"--web-dir {folder} cannot be used: {error.strerror}") from None
        index = self.opened(f"/{INDEX}")
        if index is None:
            raise StartupError(f"--web-dir {folder} holds no {INDEX} that can be read")
        index.file.close()

    def opened(self, path: str) -> WebFile | None:
        """The file at a path of a URL, which begins with a slash and has no escapes any more; None: there is none."""
        names = path.removeprefix("/").split("/")
        if any(not _is_plain(name) for name in names):
            return None
        try:
            found = self._root.joinpath(*names).resolve(strict=True)
            if not found.is_relative_to(self._root) or not found.is_file():
                return None
            file = found.open("rb")
        except (OSError, RuntimeError):  # a ring of links is a RuntimeError up to Python 3.12
            return None
        return WebFile(names[-1], file, os.fstat(file.fileno()).st_size)


def _is_plain(name: str) -> bool:
    """Whether it names an entry of a folder, and none that is meant to be hidden."""
    hidden = name.startswith(".") and name != ".well-known"
    return bool(name) and not hidden and not any(mark in name for mark in "\0\\:")


def is_api(path: str) -> bool:
    """Whether nothing but routes and files may answer at this path."""
    return path == "/v1" or path.startswith(API_PREFIXES)


def add_web_folder(app: Quart, folder: WebFolder) -> Found:
    """Add its page at ``/``; what comes back answers other requests that no route takes, or not (None)."""

    @app.get("/")
    async def index() -> Response:
        response = await _answer(folder, f"/{INDEX}", ANEW)
        if response is None:
            raise NotFound  # removed while the server runs
        return response

    async def found() -> Response | None:
        path = request.path
        if request.method not in ("GET", "HEAD"):
            return None
        response = await _answer(folder, path, FOREVER if path.startswith("/assets/") else ANEW)
        if response is None and not is_api(path):
            response = await _answer(folder, f"/{INDEX}", ANEW)
        return response

    return found


async def _answer(folder: WebFolder, path: str, cache: str) -> Response | None:
    opened = await to_thread.run_sync(folder.opened, path)
    if opened is None:
        return None

    async def close() -> None:
        opened.file.close()

    exchange_of(request.scope).on_close(close)
    suffix = Path(opened.name).suffix.lower()
    headers = {"Cache-Control": cache, "X-Content-Type-Options": "nosniff"}
    body = _pieces(opened) if request.method != "HEAD" else b""
    response = Response(body, content_type=TYPES.get(suffix, "application/octet-stream"), headers=headers)
    response.headers["Content-Length"] = str(opened.length)  # of the file, not of what a HEAD gets
    response.timeout = None
    return response


async def _pieces(opened: WebFile) -> AsyncIterator[bytes]:
    """As many bytes as were announced, even of a file that grows; of one that shrinks, what there is."""
    left = opened.length
    while left:
        piece = await to_thread.run_sync(opened.file.read, min(left, PIECE_BYTES))
        if not piece:
            return
        left -= len(piece)
        yield piece
