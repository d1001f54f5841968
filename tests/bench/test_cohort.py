"""Clients of a real server on a socket, with a scripted engine behind it."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from ninfer.bench import cli, cohort
from ninfer.bench.clients import Answer, Wave, run_wave, served_model
from ninfer.bench.cohort import wave_object
from ninfer.bench.http_client import Refused, Target
from ninfer.bench.plot import rates
from ninfer.bench.workloads import Overrides, workload
from ninfer.config import HttpSettings
from ninfer.errors import NinferError, StartupError
from ninfer.options import OptionError
from tests.support.http import MODEL_ID, says
from tests.support.listening import listening

FIELDS = {"model": MODEL_ID, "temperature": 0}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8080", Target("127.0.0.1", 8080, False, "", None)),
        ("http://host/v1/", Target("host", 80, False, "", None)),
        ("https://host/models/v1", Target("host", 443, True, "/models", None)),
    ],
)
def test_urls(url: str, expected: Target) -> None:
    assert Target.of(url, None) == expected


@pytest.mark.parametrize("url", ["host:80", "ftp://host", "http://", "http://h:99999"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match="--url"):
        Target.of(url, None)


async def measured(requests: int, concurrency: int, max_tokens: int, *, key: str | None = None) -> Wave:
    settings = HttpSettings(api_keys=("key",))
    async with listening(says("</think>\n\nOne two three four five six."), http=settings) as server:
        target = Target.of(server.url, "key" if key is None else key)
        body_of = workload("generation_1k", Overrides(None, max_tokens, FIELDS))
        return await run_wave(target, [body_of(number) for number in range(requests)], concurrency, 0, 5)


def test_a_wave_over_a_socket() -> None:
    wave = anyio.run(measured, 3, 2, 6)
    assert [answer.number for answer in wave.answers] == [5, 6, 7]
    assert all(answer.error is None and answer.finish_reason == "length" for answer in wave.answers)
    found = wave_object(wave)
    assert found["output_tokens"] == 18
    assert found["errors"] == 0
    assert found["prompt_tokens"] == found["computed_prompt_tokens"] == sum(a.prompt_tokens for a in wave.answers) > 0
    assert found["end_to_end_tok_s"] == pytest.approx(18 / wave.wall_s)
    assert found["active_prefill_tok_s"] is not None
    assert all(0 <= answer.ttft_s <= answer.ended_at - answer.sent_at for answer in wave.answers if answer.ttft_s)


def test_a_refused_request_is_an_error_and_leaves_the_sums() -> None:
    async def run() -> Wave:
        return await measured(1, 1, 6, key="wrong")

    wave = anyio.run(run)
    found = wave_object(wave)
    assert found["errors"] == 1
    assert found["output_tokens"] == 0
    assert found["decode_tok_s"] is None
    assert "401" in str(wave.answers[0].error)


def test_the_model_that_is_served() -> None:
    async def run() -> None:
        async with listening(says("</think>\n\nHi.")) as server:
            assert (await served_model(Target.of(server.url, None)))["id"] == MODEL_ID
            with pytest.raises(Refused, match="404"):
                await Target.of(server.url, None).get("/nothing")

    anyio.run(run)


def test_the_command_needs_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cohort", "--url", "http://127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert cli.main(["cohort", "--url", "http://127.0.0.1:1", "--concurrency", "x"]) == 1
    assert cli.main(["cohort"]) == 1
    assert "--url" in capsys.readouterr().err


def answer(number: int, *arrivals: float, tokens: int, **more: object) -> Answer:
    timings = {"prompt_ms": 100.0, "cache_n": 3, **more}
    return Answer(
        number, 0.0, list(arrivals), 9.0, "length", {"prompt_tokens": 13, "completion_tokens": tokens}, timings
    )


def test_measures_are_those_of_the_contract() -> None:
    answers = [answer(0, 1.0, 1.5, 2.5, tokens=10, predicted_ms=3000.0), answer(1, 2.0, 4.0, tokens=5)]
    found = wave_object(Wave(2, 0, 10.0, answers))
    assert found["computed_prompt_tokens"] == 20
    assert found["aggregate_prefill_tok_s"] == 2.0
    assert found["active_prefill_tok_s"] == pytest.approx(20 / 0.2)
    assert found["decode_tok_s"] == 15 / 3.0
    assert found["tpot_ms"] == {
        "mean": pytest.approx((3000 / 9 + 2000 / 4) / 2), "p50": pytest.approx((3000 / 9 + 500) / 2),
        "p95": pytest.approx(500 - 0.05 * (500 - 3000 / 9)), "p99": pytest.approx(500 - 0.01 * (500 - 3000 / 9)),
    }  # fmt: skip
    gaps = found["gap_ms"]
    assert isinstance(gaps, dict)
    assert (gaps["p50"], gaps["max"]) == (1000.0, 2000.0)
    assert "2" in cohort.table({"waves": [found]})
    assert rates({"waves": [found]}) == [("2 clients", 5.0)]


def test_workloads(tmp_path: Path) -> None:
    short = workload("generation_1k", Overrides(None, None, FIELDS))(7)
    assert short["max_tokens"] == 1024
    assert short["model"] == MODEL_ID
    long = workload("prefill", Overrides(None, None, {}))
    assert len(str(long(0)["messages"])) > 28_000
    assert long(0)["messages"] != long(1)["messages"]
    assert len(str(workload("prefill", Overrides(100, 5, {}))(0))) < 800
    assert workload("saturation", Overrides(None, None, {}))(0)["max_tokens"] == 8192
    file = tmp_path / "requests.jsonl"
    file.write_text('{"messages": [], "max_tokens": 3}\n\n{"messages": [1]}\n')
    own = workload(str(file), Overrides(None, None, FIELDS))
    assert own(2) == {"messages": [], "max_tokens": 3, **FIELDS}
    assert workload(str(file), Overrides(None, 9, {}))(1) == {"messages": [1], "max_tokens": 9}
    for text in ("", "[1]\n", "{\n"):
        file.write_text(text)
        with pytest.raises(StartupError):
            workload(str(file), Overrides(None, None, {}))
    with pytest.raises(StartupError, match="cannot be read"):
        workload("/nowhere", Overrides(None, None, {}))


async def answered_with(data: bytes) -> Answer:
    """What a client makes of a server that says exactly this."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(data)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        target = Target("127.0.0.1", port, False, "", None)
        wave = await run_wave(target, [{"messages": []}], 1, 0, 0)
        tasks.cancel_scope.cancel()
    await listener.aclose()
    return wave.answers[0]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"nonsense\r\n\r\n", "is no HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\ndata: [DO", "is no HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\ndata: [DONE]\n\n", "ended early"),
        (b'HTTP/1.1 200 OK\r\ncontent-length: 23\r\n\r\ndata: {"error": "no"}\n\n\n', "no"),
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\nno", "500: no"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ndata: {\n\n", "Expecting"),
    ],
    ids=["no http", "cut", "empty", "error event", "status", "no json"],
)
def test_what_goes_wrong_is_noted_in_the_answer(data: bytes, text: str) -> None:
    assert text in str(anyio.run(answered_with, data).error)


def test_errors_of_the_client_are_errors_of_the_project() -> None:
    assert issubclass(Refused, NinferError)
    assert json.dumps(Answer(0, 0.0).to_json())
