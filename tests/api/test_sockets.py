"""The server on real sockets: both protocol versions, TLS, many streams at once, peers that vanish."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.streams.tls
import h2.connection
import h2.events
import httpx
import orjson
import pytest
import trustme
from anyio.abc import SocketStream

from ninfer.api import edge
from ninfer.config import HttpSettings, SchedulerSettings
from ninfer.errors import StartupError
from ninfer.listener import server_config
from tests.support.engines import FakeEngine
from tests.support.http import ask, chunks, joined, settle
from tests.support.listening import listening
from tests.support.system import TOKENIZER

pytestmark = pytest.mark.asyncio

FOUR_LANES = SchedulerSettings(lanes=4, max_pending=16)


def repeats() -> FakeEngine:
    """A model that says what stands between brackets in the prompt, ten times."""

    def words(prompt: tuple[int, ...]) -> list[int]:
        _, _, rest = TOKENIZER.decode(prompt).partition("[")
        return TOKENIZER.encode_with_control("</think>\n\n" + f"{rest.partition(']')[0]} " * 10)

    return FakeEngine(words)


def talker() -> FakeEngine:
    """A model that does not stop by itself."""
    ids = TOKENIZER.encode("a b c " * 5000)
    return FakeEngine(lambda _prompt: ids)


def client(version: str, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(http1=version == "h1", http2=version == "h2", timeout=30, trust_env=False, **options)


def without_ids(body: bytes) -> list[dict[str, Any]]:
    """The chunks of a stream without what differs from answer to answer."""
    parts = chunks(body)
    for part in parts:
        del part["id"]
        part.pop("timings", None)
    return parts


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> HttpSettings:
    folder = tmp_path_factory.mktemp("tls")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    with (folder / "cert.pem").open("wb") as file:
        for blob in issued.cert_chain_pems:
            file.write(blob.bytes())
    return HttpSettings(tls_cert=folder / "cert.pem", tls_key=folder / "key.pem")


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_both_versions_give_the_same(tls: HttpSettings, trusting: ssl.SSLContext) -> None:
    answers = []
    for settings in (HttpSettings(), tls):
        async with listening(repeats(), http=settings) as server:
            for version in ("h1", "h2"):
                async with client(version, verify=trusting) as http:
                    answer = await http.post(f"{server.url}/chat/completions", json=ask("[x]", stream=True))
                    assert answer.http_version == {"h1": "HTTP/1.1", "h2": "HTTP/2"}[version]
                    assert "server" not in answer.headers
                    missing = await http.get(f"{server.url}/nope")
                    answers.append((without_ids(answer.content), missing.status_code, missing.content))
    assert all(answer == answers[0] for answer in answers)
    assert joined(answers[0][0], "content") == "x " * 10


async def test_alpn_chooses(tls: HttpSettings, trusting: ssl.SSLContext) -> None:
    async with listening(repeats(), http=tls) as server:
        for offered, chosen in ((["h2", "http/1.1"], "h2"), (["http/1.1"], "http/1.1")):
            trusting.set_alpn_protocols(offered)
            stream = await anyio.connect_tcp(
                "127.0.0.1", server.port, ssl_context=trusting, tls_standard_compatible=False
            )
            async with stream:
                assert stream.extra(anyio.streams.tls.TLSAttribute.alpn_protocol) == chosen


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("flag", ["--http1.1", "--http2-prior-knowledge"])
async def test_curl(flag: str) -> None:
    async with listening(repeats()) as server:
        command = ["curl", "-sS", "--noproxy", "*", flag, "-w", "%{http_code}", f"{server.url}/chat/completions"]
        body = b'{"model":"tiny/model","messages":[{"role":"user","content":"[y]"}],"x":"' + b"z" * 2_000_000 + b'"}'
        done = await anyio.run_process([*command, "--data-binary", "@-"], input=body, stderr=subprocess.PIPE)
        assert done.stdout.endswith(b"200"), done.stderr
        assert b'"content":"y y y' in done.stdout


@pytest.mark.parametrize("version", ["h1", "h2"])
async def test_sixty_four_streams_against_four_lanes(version: str) -> None:
    engine = repeats()
    async with listening(engine, scheduler=FOUR_LANES) as server:
        engine.gate = threading.Event()  # nothing ends before everybody has come
        answers: dict[int, httpx.Response] = {}
        limits = httpx.Limits(max_connections=100)
        async with client(version, limits=limits) as http:

            async def one(number: int) -> None:
                body = ask(f"[stream {number}]", stream=True)
                answers[number] = await http.post(f"{server.url}/chat/completions", json=body)
                if len(answers) == 44:
                    engine.gate.set()  # type: ignore[union-attr]

            async with anyio.create_task_group() as tasks:
                for number in range(64):
                    tasks.start_soon(one, number)
        served = {number: answer for number, answer in answers.items() if answer.status_code == 200}
        assert len(served) == 20
        for number, answer in served.items():
            assert joined(chunks(answer.content), "content") == f"stream {number} " * 10
        for answer in answers.values():
            if answer.status_code != 200:
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
                assert answer.json()["error"]["code"] == "server_overloaded"
        await settle(server.served)
        assert max(engine.rows_seen) == 4


async def test_sixty_four_streams_with_room_for_all() -> None:
    async with (
        listening(repeats(), scheduler=SchedulerSettings(lanes=4, max_pending=60)) as server,
        client("h2") as http,
    ):
        found: dict[int, str] = {}

        async def one(number: int) -> None:
            answer = await http.post(f"{server.url}/chat/completions", json=ask(f"[{number}]", stream=True))
            found[number] = joined(chunks(answer.content), "content")

        async with anyio.create_task_group() as tasks:
            for number in range(64):
                tasks.start_soon(one, number)
        assert found == {number: f"{number} " * 10 for number in range(64)}


class Peer:
    """A client of one connection that says exactly what it does, and can be rude."""

    def __init__(self, stream: SocketStream, version: str) -> None:
        self._stream = stream
        self._h2 = h2.connection.H2Connection() if version == "h2" else None

    async def ask(self, **fields: object) -> int:
        """Send a request; returns its stream id."""
        body = orjson.dumps(ask(**fields))
        if self._h2 is None:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            await self._stream.send(head.encode() + body)
            return 1
        if self._h2.state_machine.state is h2.connection.ConnectionState.IDLE:
            self._h2.initiate_connection()
        stream_id = self._h2.get_next_available_stream_id()
        path = "/v1/chat/completions"
        headers = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "x")]
        self._h2.send_headers(stream_id, headers)
        self._h2.send_data(stream_id, body, end_stream=True)
        await self._stream.send(self._h2.data_to_send())
        return stream_id

    async def ask_in_part(self) -> int:
        """Send the beginning of an upload; returns its stream id."""
        assert self._h2 is not None
        self._h2.initiate_connection()
        headers = [(":method", "POST"), (":path", "/nope"), (":scheme", "http"), (":authority", "x")]
        self._h2.send_headers(1, headers)
        await self._stream.send(self._h2.data_to_send())
        return 1

    async def wait_end(self, stream_id: int) -> None:
        """Read until the answer is complete."""
        assert self._h2 is not None
        while True:
            events = self._h2.receive_data(await self._stream.receive())
            await self._stream.send(self._h2.data_to_send())
            if any(isinstance(event, h2.events.StreamEnded) and event.stream_id == stream_id for event in events):
                return

    async def send_more(self, stream_id: int) -> None:
        """Send more of the upload."""
        assert self._h2 is not None
        self._h2.send_data(stream_id, b"more")
        await self._stream.send(self._h2.data_to_send())

    async def wait_text(self, text: bytes) -> None:
        """Read until this was in the answer."""
        seen = b""
        while text not in seen:
            data = await self._stream.receive()
            if self._h2 is None:
                seen += data
                continue
            for event in self._h2.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    seen += event.data
            await self._stream.send(self._h2.data_to_send())

    async def leave(self, stream_id: int) -> None:
        """Give the request up: on HTTP/2 the connection lives on."""
        if self._h2 is None:
            await self._stream.aclose()
        else:
            self._h2.reset_stream(stream_id)
            await self._stream.send(self._h2.data_to_send())


@pytest.mark.parametrize("version", ["h1", "h2"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_peer_that_leaves_frees_its_place(version: str, stream: bool) -> None:
    engine = talker()
    async with listening(engine, scheduler=SchedulerSettings(max_pending=1)) as server:
        machine = server.served.state.system.machine
        connections: list[SocketStream] = []
        for _ in range(4):
            if version == "h1" or not connections:
                connections.append(await anyio.connect_tcp("127.0.0.1", server.port))
                peer = Peer(connections[-1], version)
            stream_id = await peer.ask(stream=stream)
            if stream:
                await peer.wait_text(b"reasoning_content")
            else:
                while not machine.statistics().decode_ready:
                    await anyio.lowlevel.checkpoint()
            drawn = machine.statistics().totals.decode_tokens
            await peer.leave(stream_id)
            await settle(server.served)
            # It ended because it was given up, not because it had come to its end.
            assert machine.statistics().totals.decode_tokens - drawn < 4000
            assert machine.statistics().totals.completed == 0
        for connection in connections:
            await connection.aclose()


async def test_a_peer_that_reads_nothing_is_given_up_and_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "SLOW_PEER_S", 0.3)
    scheduler = SchedulerSettings(lanes=2, max_context_tokens=65536)
    async with listening(talker(), scheduler=scheduler) as server, client("h1") as http:
        machine = server.served.state.system.machine
        async with await anyio.connect_tcp("127.0.0.1", server.port) as connection:
            # Nobody reads here, so the stream stands still when its HTTP/2 window is full.
            await Peer(connection, "h2").ask(stream=True, max_tokens=60_000)
            answer = await http.post(f"{server.url}/chat/completions", json=ask(max_tokens=200))
            assert answer.json()["usage"]["completion_tokens"] == 200
            await settle(server.served)
        assert machine.statistics().totals.completed == 1


async def test_an_upload_that_goes_on_after_its_answer_harms_no_other_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "LINGER_S", 0.01)
    async with listening(talker()) as server:
        async with await anyio.connect_tcp("127.0.0.1", server.port) as connection:
            peer = Peer(connection, "h2")
            upload = await peer.ask_in_part()
            await peer.wait_end(upload)
            await peer.send_more(upload)
            stream_id = await peer.ask(stream=True, max_tokens=50)
            await peer.send_more(upload)
            await peer.wait_text(b"[DONE]")
            assert stream_id > upload
        await settle(server.served)


@pytest.mark.parametrize("version", ["h1", "h2"])
async def test_a_refused_upload_gets_its_answer(version: str) -> None:
    settings = HttpSettings(max_request_bytes=100_000, api_keys=("k",))
    async with listening(repeats(), http=settings) as server, client(version) as http:
        key = {"x-api-key": "k"}
        for headers, status in (({}, 401), (key, 413)):
            big = b"x" * 3_000_000
            answer = await http.post(f"{server.url}/chat/completions", content=big, headers=headers)
            assert answer.status_code == status
        assert (await http.post(f"{server.url}/nope", content=b"x" * 50_000, headers=key)).status_code == 404
        assert (await http.get(f"{server.url}/models", headers=key)).status_code == 200


async def test_idle_connections_take_no_place() -> None:
    async with listening(repeats(), scheduler=SchedulerSettings(max_pending=1)) as server:
        idle = [await anyio.connect_tcp("127.0.0.1", server.port) for _ in range(40)]
        async with client("h1") as http:
            answer = await http.post(f"{server.url}/chat/completions", json=ask("[z]"))
            assert answer.json()["choices"][0]["message"]["content"] == "z " * 10
        for stream in idle:
            await stream.aclose()


async def test_bad_tls_files_are_the_operators_to_mend(tmp_path: Path) -> None:

    (tmp_path / "pem").write_text("nothing")
    settings = HttpSettings(tls_cert=tmp_path / "pem", tls_key=tmp_path / "pem")
    with pytest.raises(StartupError, match="--tls-cert"):
        server_config(settings)
