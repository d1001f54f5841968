"""A folder of one's own at the root: its files, its page where nothing else is, and nothing from outside of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from ninfer.api.web import WebFolder
from ninfer.config import HttpSettings
from ninfer.errors import StartupError
from tests.support.http import MODEL_ID, Served, ask, says, served
from tests.support.listening import listening

PAGE = b"<!doctype html><title>mine</title>"
FOREVER = "public, max-age=31536000, immutable"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "web"
    (root / "assets" / "deep").mkdir(parents=True)
    (root / "index.html").write_bytes(PAGE)
    (root / "assets" / "app-1a2b.js").write_bytes(b"let x = 1;")
    (root / "assets" / "deep" / "font.woff2").write_bytes(b"\0\1")
    (root / "robots.txt").write_bytes(b"\xc3\xa4")
    (root / "stats.html").write_bytes(b"a page of mine")
    (root / "empty.bin").write_bytes(b"")
    (root / ".env").write_bytes(b"KEY=secret")
    (root / ".well-known").mkdir()
    (root / ".well-known" / "x.json").write_bytes(b"{}")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    (tmp_path / "webbing").mkdir()
    (tmp_path / "webbing" / "near.txt").write_bytes(b"secret")
    return root


async def answer(state: Served, path: str, method: str = "GET") -> tuple[int, str, str, bytes]:
    response = await state.app.test_client().open(path, method=method)
    cache, kind = (response.headers.get(name, "") for name in ("cache-control", "content-type"))
    return response.status_code, kind, cache, await response.get_data()


@pytest.mark.asyncio
async def test_files_have_their_types_and_how_long_they_may_be_kept(folder: Path) -> None:
    async with served(http=HttpSettings(web_dir=folder)) as state:
        html, no_cache = "text/html; charset=utf-8", "no-cache"
        assert await answer(state, "/") == (200, html, no_cache, PAGE)
        assert await answer(state, "/index.html") == (200, html, no_cache, PAGE)
        script = (200, "text/javascript; charset=utf-8", FOREVER, b"let x = 1;")
        assert await answer(state, "/assets/app-1a2b.js") == script
        assert await answer(state, "/assets/app-1a2b.js?v=2") == script
        assert await answer(state, "/assets/deep/font.woff2") == (200, "font/woff2", FOREVER, b"\0\1")
        assert await answer(state, "/robots.txt") == (200, "text/plain; charset=utf-8", no_cache, b"\xc3\xa4")
        assert await answer(state, "/empty.bin") == (200, "application/octet-stream", no_cache, b"")
        assert await answer(state, "/.well-known/x.json") == (200, "application/json", no_cache, b"{}")
        assert await answer(state, "/stats.html") == (200, html, no_cache, b"a page of mine")
        response = await state.app.test_client().get("/assets/app-1a2b.js")
        assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/lanes", "/lanes/3", "/lanes/", "/assets/old.js", "/assets", "/v2/x", "//", "/.env"])
async def test_the_page_stands_where_nothing_is_and_is_never_kept(folder: Path, path: str) -> None:
    async with served(http=HttpSettings(web_dir=folder)) as state:
        assert await answer(state, path) == (200, "text/html; charset=utf-8", "no-cache", PAGE)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        *[(path, "GET", 404) for path in ("/v1", "/v1/nope", "/v1/models/x", "/slots/0/x", "/metrics/", "/stats/x")],
        *[
            (path, "GET", 404)
            for path in ("/healthz", "/health/", "/telemetry/x", "/events/x", "/propss", "/requests/a/b")
        ],
        *[("/v1/chat/completions", "GET", 405), ("/slots/0", "GET", 405), ("/tokenize", "GET", 405)],
        *[("/lanes", "POST", 404), ("/robots.txt", "POST", 404), ("/", "POST", 405), ("/robots.txt", "DELETE", 404)],
    ],
)
async def test_mistakes_of_clients_are_told_as_such(folder: Path, path: str, method: str, status: int) -> None:
    async with served(http=HttpSettings(web_dir=folder)) as state:
        found, kind, _, body = await answer(state, path, method)
        assert (found, kind) == (status, "application/json")
        assert b'"error"' in body


@pytest.mark.asyncio
async def test_routes_come_first_and_their_own_refusals_stay(folder: Path) -> None:
    (folder / "health").write_bytes(b"mine")
    (folder / "v1" / "models").mkdir(parents=True)
    (folder / "v1" / "models" / "other").write_bytes(b"mine")
    async with served(http=HttpSettings(web_dir=folder)) as state:
        assert (await answer(state, "/health"))[3].startswith(b'{"status":"ok"')
        assert (await answer(state, "/v1/models/other"))[0] == 404
        assert (await state.post({**ask(), "model": "other"})).status_code == 404
        assert (await state.post(ask())).status_code == 200
        assert MODEL_ID.encode() in (await answer(state, "/props"))[3]


@pytest.mark.parametrize(
    "path",
    [
        *("/../secret.txt", "/assets/../../secret.txt", "/..", "/.", "/./robots.txt", "//etc/passwd", "/assets//x"),
        *(
            "/..\\secret.txt",
            "/assets\\..\\..\\secret.txt",
            "/C:/x",
            "/robots.txt\0",
            "/robots.txt\0.js",
            "/robots.txt/",
        ),
        *(
            "/.env",
            "/assets",
            "/" + "x" * 5000,
            "/" + "x/" * 3000,
            "/out",
            "/out/near.txt",
            "/abroad/secret.txt",
            "/ring",
        ),
        *("/fifo", "", "/nothing"),
    ],
    ids=lambda path: repr(path[:30]),
)
def test_nothing_but_files_inside_is_found(folder: Path, path: str) -> None:
    (folder / "out").symlink_to(folder.parent / "secret.txt")
    (folder / "abroad").symlink_to(folder.parent)
    (folder / "ring").symlink_to(folder / "ring")
    os.mkfifo(folder / "fifo")
    assert WebFolder(folder).opened(path) is None


def test_links_inside_the_folder_are_followed_and_the_folder_may_be_one(folder: Path) -> None:
    version = folder / "..2026"
    version.mkdir()
    (version / "index.html").write_bytes(b"linked")
    (folder / "index.html").unlink()
    (folder / "index.html").symlink_to("..2026/index.html")
    door = folder.parent / "door"
    door.symlink_to(folder)
    found = WebFolder(door).opened("/index.html")
    assert found is not None
    with found.file:
        assert (found.file.read(), found.length, found.name) == (b"linked", 6, "index.html")


def _gone(folder: Path) -> Path:
    return folder / "nowhere"


def _is_file(folder: Path) -> Path:
    return folder / "robots.txt"


def _without(folder: Path) -> Path:
    return folder / "assets"


def _escapes(folder: Path) -> Path:
    (folder / "assets" / "index.html").symlink_to(folder.parent / "secret.txt")
    return folder / "assets"


@pytest.mark.parametrize(
    ("of", "says_why"),
    [
        (_gone, "nowhere cannot be used: No such file"),
        (_is_file, "robots.txt holds no index.html"),
        (_without, "assets holds no index.html"),
        (_escapes, "assets holds no index.html"),
    ],
)
def test_a_folder_that_cannot_be_served(folder: Path, of: Callable[[Path], Path], says_why: str) -> None:
    with pytest.raises(StartupError, match=f"--web-dir .*{says_why}"):
        WebFolder(of(folder))


@pytest.mark.asyncio
async def test_a_page_that_is_gone_is_missing_and_nothing_else_is(folder: Path) -> None:
    async with served(http=HttpSettings(web_dir=folder)) as state:
        (folder / "index.html").unlink()
        assert (await answer(state, "/"))[0] == (await answer(state, "/lanes"))[0] == 404
        assert (await answer(state, "/robots.txt"))[0] == 200
        (folder / "index.html").write_bytes(PAGE)
        assert (await answer(state, "/"))[3] == PAGE


@pytest.mark.asyncio
async def test_files_need_the_key(folder: Path) -> None:
    async with served(http=HttpSettings(web_dir=folder, api_keys=("k",))) as state:
        for path in ("/", "/robots.txt", "/lanes"):
            assert (await answer(state, path))[0] == 401
            assert (await state.app.test_client().get(path, headers={"x-api-key": "k"})).status_code == 200


@pytest.mark.asyncio
async def test_a_large_file_over_a_socket_whole_asked_for_without_its_body_and_left_half_read(folder: Path) -> None:
    big = bytes(range(256)) * 8192
    (folder / "assets" / "big.bin").write_bytes(big)

    async def ask_for(line: bytes, port: int, most: int) -> tuple[bytes, bytes]:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(line + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            data = b""
            while len(data) < most:
                try:
                    data += await stream.receive()
                except anyio.EndOfStream:
                    break
        head, _, body = data.partition(b"\r\n\r\n")
        return head, body

    async with listening(says("x"), http=HttpSettings(web_dir=folder)) as server:
        head, body = await ask_for(b"GET /assets/big.bin", server.port, 1 << 30)
        assert b"content-length: 2097152" in head.lower()
        assert body == big
        head, body = await ask_for(b"HEAD /assets/big.bin", server.port, 1 << 30)
        assert b"content-length: 2097152" in head.lower()
        assert body == b""
        await ask_for(b"GET /assets/big.bin", server.port, 1)
        head, body = await ask_for(b"GET /robots.txt", server.port, 1 << 30)
        assert body == b"\xc3\xa4"
        # `..` in the target, and the same escaped, as no client library would send them.
        for target in (b"/../secret.txt", b"/%2e%2e/secret.txt", b"/assets/..%2f..%2fsecret.txt", b"/%ff", b"/x%00"):
            head, body = await ask_for(b"GET " + target, server.port, 1 << 30)
            assert (head.split()[1], body) == (b"200", PAGE)
