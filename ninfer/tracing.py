"""Traces of requests over OTLP/HTTP, for servers that are told of a collector; nothing of it is imported otherwise.

A request is one trace of spans made when it is over, from what the scheduler noted of it: the request, and in it its
preparation, its wait, the reading of its prompt and the drawing of its answer. Spans hold counts and times, but neither
text nor keys. They are sent in batches by a thread of the library's; what a collector does not take is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ninfer.actors.messages import RequestTimeline
from ninfer.errors import StartupError
from ninfer.version import VERSION

# Any of them says that a collector is there (OpenTelemetry's own variables).
ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
# How long the end of the process waits for a collector to take what is left.
CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that is over.

    protocol   as in the request log
    outcome    `completed`, `cancelled`, `failed` or `rejected`
    parent     the client's ``traceparent`` header, or empty
    """

    timeline: RequestTimeline
    protocol: str
    model: str
    stream: bool
    outcome: str
    parent: str = ""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a request, in seconds since its arrival."""

    name: str
    begin_s: float
    end_s: float
    attributes: Mapping[str, str | int | bool]


def stretches(timeline: RequestTimeline) -> Iterator[Stretch]:
    """What of a request took place, in order; a part that was broken off ends with the request."""
    over = timeline.ended_s if timeline.ended_s is not None else timeline.age_s
    moments = (0.0, timeline.prepared_s, timeline.admitted_s, timeline.first_token_s, timeline.last_token_s)
    decoding = {
        "ninfer.drawn_tokens": timeline.drawn_tokens,
        "ninfer.rounds": timeline.rounds,
        "ninfer.drafted_tokens": timeline.drafted_tokens,
        "ninfer.accepted_tokens": timeline.accepted_tokens,
    }
    parts: tuple[tuple[str, Mapping[str, str | int | bool]], ...] = (
        ("prepare", {"ninfer.prompt_tokens": timeline.prompt_tokens}),
        ("queue", {"ninfer.priority": timeline.priority}),
        ("prefill", {"ninfer.cached_tokens": timeline.cached_tokens, "ninfer.chunks": timeline.chunks}),
        ("decode", decoding),
    )
    for (name, attributes), begin, end in zip(parts, moments, moments[1:], strict=False):
        if begin is None:
            return
        yield Stretch(name, begin, end if end is not None else max(begin, over), attributes)


class Tracing:
    """Makes spans and hands them over. Use `record` from the event loop: it waits for nothing.

    provider    of the OpenTelemetry SDK, owned from here on
    unix_time   the wall clock in seconds
    """

    def __init__(self, provider: Any, unix_time: Callable[[], float]) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("ninfer", VERSION)
        self._propagator = TraceContextTextMapPropagator()
        self._unix_time = unix_time

    def record(self, ended: Ended) -> None:
        """Make the spans of a request that is over."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        timeline = ended.timeline
        arrived = self._unix_time() - timeline.age_s

        def at(seconds: float) -> int:
            return round((arrived + seconds) * 1e9)

        parent = self._propagator.extract({"traceparent": ended.parent}) if ended.parent else None
        attributes = _attributes(ended)
        tracer = self._tracer
        whole = tracer.start_span("request", parent, SpanKind.SERVER, attributes=attributes, start_time=at(0.0))
        inside = set_span_in_context(whole)
        for part in stretches(timeline):
            span = tracer.start_span(part.name, inside, attributes=part.attributes, start_time=at(part.begin_s))
            span.end(at(part.end_s))
        if ended.outcome == "failed":
            whole.set_status(Status(StatusCode.ERROR, timeline.error_code))
        whole.end(at(timeline.age_s))

    def close(self) -> None:
        """Send what is left; waits a little for a collector that does not answer."""
        thread = threading.Thread(target=self._provider.shutdown, name="ninfer-tracing", daemon=True)
        thread.start()
        thread.join(CLOSE_S)


def _attributes(ended: Ended) -> dict[str, str | int | bool]:
    """Of the whole request; names of OpenTelemetry's conventions where there are any."""
    timeline = ended.timeline
    found: dict[str, str | int | bool | None] = {
        "gen_ai.request.model": ended.model,
        "gen_ai.request.max_tokens": timeline.max_tokens,
        "gen_ai.usage.input_tokens": timeline.prompt_tokens,
        "gen_ai.usage.output_tokens": timeline.drawn_tokens,
        "error.type": timeline.error_code,
        "ninfer.request_id": timeline.request_id,
        "ninfer.x_request_id": timeline.name,
        "ninfer.protocol": ended.protocol,
        "ninfer.stream": ended.stream,
        "ninfer.outcome": ended.outcome,
        "ninfer.finish_reason": timeline.finish_reason,
        "ninfer.lane": timeline.lane,
        "ninfer.prefix_reuse_path": timeline.way,
        "ninfer.host_restored": timeline.host_restored,
    }
    return {name: value for name, value in found.items() if value is not None}


def open_tracing(
    endpoint: str | None, environment: Mapping[str, str], unix_time: Callable[[], float]
) -> Tracing | None:
    """Traces to a collector, if one is named by its base URL or by OpenTelemetry's variables; else None.

    The library reads the rest of those variables itself: headers, certificates, sampling, names of the service.
    raises StartupError when its packages are not installed
    """
    if endpoint is None and not any(environment.get(name) for name in ENDPOINT_VARIABLES):
        return None
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        asked = "--otlp-endpoint" if endpoint is not None else ENDPOINT_VARIABLES[0]
        raise StartupError(f"{asked} needs OpenTelemetry ({error.name}): pip install 'ninfer[otel]'") from None
    named = {} if environment.get("OTEL_SERVICE_NAME") else {"service.name": "ninfer"}
    provider = TracerProvider(resource=Resource.create({**named, "service.version": VERSION}), shutdown_on_exit=False)
    url = f"{endpoint.rstrip('/')}/v1/traces" if endpoint is not None else None
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
    return Tracing(provider, unix_time)
