"""Traces: what of a request becomes a span, what reaches a collector, and that nothing is loaded without one."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ninfer.actors.messages import RequestTimeline
from ninfer.errors import StartupError
from ninfer.options import OptionError, parse
from ninfer.tracing import Ended, Tracing, open_tracing, stretches

TIMELINE = RequestTimeline(
    request_id=7,
    name="req_a_7",
    state="ended",
    position=None,
    age_s=10.0,
    deadline_s=60.0,
    prepared_s=1.0,
    admitted_s=2.0,
    first_token_s=4.0,
    last_token_s=9.0,
    ended_s=9.5,
    released_s=None,
    prompt_tokens=100,
    max_tokens=50,
    priority=0,
    lane=3,
    way="append_frontier",
    cached_tokens=64,
    host_restored=False,
    read_tokens=100,
    chunks=2,
    drawn_tokens=20,
    rounds=19,
    drafted_tokens=0,
    accepted_tokens=0,
    finish_reason="stop_token",
    error_code=None,
    retained_tokens=0,
)
ENDED = Ended(TIMELINE, "openai_chat_completions", "tiny", True, "completed")
NOW = 1_790_000_000.0
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_request_has_four_parts() -> None:
    assert [(part.name, part.begin_s, part.end_s) for part in stretches(TIMELINE)] == [
        ("prepare", 0.0, 1.0),
        ("queue", 1.0, 2.0),
        ("prefill", 2.0, 4.0),
        ("decode", 4.0, 9.0),
    ]


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({"prepared_s": None, "admitted_s": None}, ("prepare", 0.0, 9.5)),
        ({"admitted_s": None}, ("queue", 1.0, 9.5)),
        ({"first_token_s": None, "last_token_s": None}, ("prefill", 2.0, 9.5)),
        ({"first_token_s": None, "last_token_s": None, "ended_s": None}, ("prefill", 2.0, 10.0)),
        ({"first_token_s": None, "last_token_s": None, "ended_s": 1.5}, ("prefill", 2.0, 2.0)),
    ],
    ids=str,
)
def test_what_was_broken_off_ends_with_the_request(
    changes: dict[str, float | None], last: tuple[str, float, float]
) -> None:
    parts = list(stretches(replace(TIMELINE, **changes)))  # type: ignore[arg-type]
    assert (parts[-1].name, parts[-1].begin_s, parts[-1].end_s) == last


def test_nothing_is_traced_or_loaded_unless_a_collector_is_named() -> None:
    probe = (
        "import sys, time, ninfer.server, ninfer.tracing as t\n"
        "assert t.open_tracing(None, {}, time.time) is None\n"
        "assert t.open_tracing(None, {'OTEL_EXPORTER_OTLP_ENDPOINT': ''}, time.time) is None\n"
        "assert t.open_tracing('http://c', {'OTEL_SDK_DISABLED': 'true'}, time.time) is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)


@pytest.mark.parametrize(
    ("endpoint", "environment", "asked"),
    [
        ("http://c", {}, "--otlp-endpoint"),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ],
)
def test_a_collector_without_the_packages_is_an_error(
    endpoint: str | None, environment: dict[str, str], asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(StartupError, match=rf"{asked} needs OpenTelemetry .*pip install 'ninfer\[otel\]'"):
        open_tracing(endpoint, environment, lambda: NOW)


@pytest.mark.parametrize("url", ["collector:4318", "http://", "https:///", "http://user:secret@collector"])
def test_an_endpoint_that_is_none(url: str) -> None:
    with pytest.raises(OptionError, match="--otlp-endpoint") as error:
        parse(["model.ninfer", "--otlp-endpoint", url])
    assert "secret" not in str(error.value).replace(url, "")
    assert parse(["model.ninfer", "--otlp-endpoint", "http://c:4318"]).log.otlp_endpoint == "http://c:4318"
    assert parse(["model.ninfer"]).log.otlp_endpoint is None


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """The address of a server that takes everything, and what it has taken."""
    taken: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *_arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def traced(base: str, tracing: Tracing, *ended: Ended) -> None:
    for one in ended:
        tracing.record(one)
    tracing.close()


def test_a_collector_gets_the_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    failed = replace(
        ENDED,
        timeline=replace(TIMELINE, first_token_s=None, last_token_s=None, finish_reason=None, error_code="engine"),
        outcome="failed",
    )
    with collector() as (base, taken):
        tracing = open_tracing(f"{base}/", {}, lambda: NOW)
        assert tracing is not None
        traced(base, tracing, replace(ENDED, parent=PARENT), failed, replace(ENDED, parent="nonsense"))
    assert {path for path, _ in taken} == {"/v1/traces"}
    spans: list[Any] = []
    for _, body in taken:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            assert names["service.name"] == "ninfer"
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    first = [span for span in spans if span.trace_id.hex() == PARENT[3:35]]
    by_name = {span.name: span for span in first}
    whole = by_name["request"]
    assert whole.parent_span_id.hex() == PARENT[36:52]
    assert set(by_name) == {"request", "prepare", "queue", "prefill", "decode"}
    assert {span.parent_span_id for span in first if span is not whole} == {whole.span_id}
    began = round((NOW - 10) * 1e9)
    assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (began, began + 10_000_000_000)
    decode = by_name["decode"]
    assert abs(decode.start_time_unix_nano - began - 4_000_000_000) < 1000
    attributes = {one.key: one.value for one in whole.attributes}
    assert attributes["gen_ai.usage.output_tokens"].int_value == 20
    assert attributes["ninfer.outcome"].string_value == "completed"
    assert "error.type" not in attributes
    assert len(spans) == 5 + 4 + 5
    (broken,) = (span for span in spans if span.name == "request" and span.status.code == 2)
    assert broken.status.message == "engine"


def test_a_collector_that_is_gone_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("ninfer.tracing.CLOSE_S", 0.2)
    with collector() as (base, _):
        pass
    tracing = open_tracing(base, {}, lambda: NOW)
    assert tracing is not None
    traced(base, tracing, ENDED)
