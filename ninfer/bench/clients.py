"""Clients of a server: one streamed answer each, with the moments at which its text came."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import anyio

from ninfer.bench.http_client import Refused, Target
from ninfer.bench.report import Json

CHAT = "/v1/chat/completions"


@dataclass(slots=True)
class Answer:
    """One request as its client saw it. Moments are monotonic seconds.

    arrivals   of events with text
    timings    the server's own, or empty
    error      None for an answer that came to its end
    """

    number: int
    sent_at: float
    arrivals: list[float] = field(default_factory=list)
    ended_at: float = 0.0
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def prompt_tokens(self) -> int:
        return int(self.usage.get("prompt_tokens", 0))

    @property
    def output_tokens(self) -> int:
        return int(self.usage.get("completion_tokens", 0))

    @property
    def cached_tokens(self) -> int:
        return int(self.timings.get("cache_n", 0))

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def ttft_s(self) -> float | None:
        return self.arrivals[0] - self.sent_at if self.arrivals else None

    @property
    def decode_s(self) -> float:
        """As the server measured it, or between the first and the last text."""
        if "predicted_ms" in self.timings:
            return float(self.timings["predicted_ms"]) / 1e3
        return self.arrivals[-1] - self.arrivals[0] if self.arrivals else 0.0

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in pairwise(self.arrivals)]

    def to_json(self) -> Json:
        return {
            "id": self.number,
            "status": "ok" if self.error is None else self.error,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "ttft_ms": None if self.ttft_s is None else 1e3 * self.ttft_s,
            "wall_ms": 1e3 * (self.ended_at - self.sent_at),
            "finish_reason": self.finish_reason,
        }


async def served_model(target: Target) -> Json:
    """The entry of the model that a server lists first; raises Refused or OSError."""
    body = await target.get("/v1/models")
    try:
        entry = json.loads(body)["data"][0]
        assert isinstance(entry["id"], str)
    except (ValueError, LookupError, TypeError, AssertionError):
        raise Refused("/v1/models does not list a model") from None
    return dict(entry)


async def ask(target: Target, body: Mapping[str, object], answer: Answer) -> None:
    """Send a request and collect what comes; a failure is noted in the answer."""
    whole = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        async with aclosing(target.events(CHAT, json.dumps(whole).encode())) as events:
            async for at, data in events:
                if data == b"[DONE]":
                    break
                _take(answer, at, json.loads(data))
        if answer.finish_reason is None and answer.error is None:
            answer.error = "the stream ended early"
    except (OSError, Refused, anyio.BrokenResourceError, ValueError) as error:
        answer.error = str(error) or type(error).__name__
    answer.ended_at = time.perf_counter()


def _take(answer: Answer, at: float, event: Mapping[str, Any]) -> None:
    if "error" in event:
        answer.error = str(event["error"])
    if event.get("usage"):
        answer.usage = event["usage"]
    answer.timings = event.get("timings") or answer.timings
    for choice in event.get("choices", ()):
        delta = choice.get("delta") or {}
        if delta.get("content") or delta.get("reasoning_content"):
            answer.arrivals.append(at)
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


@dataclass(frozen=True, slots=True)
class Wave:
    """Requests that were sent by so many clients, each sending its next when the last was answered."""

    concurrency: int
    repeat: int
    wall_s: float
    answers: Sequence[Answer]


async def run_wave(
    target: Target, bodies: Sequence[Mapping[str, object]], concurrency: int, repeat: int, first_number: int
) -> Wave:
    """Send all bodies; the clients begin together."""
    left = list(enumerate(bodies, first_number))[::-1]
    answers: list[Answer] = []

    async def client() -> None:
        while left:
            number, body = left.pop()
            answer = Answer(number, time.perf_counter())
            answers.append(answer)
            await ask(target, body, answer)

    begin = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(min(concurrency, len(bodies))):
            tasks.start_soon(client)
    return Wave(concurrency, repeat, time.perf_counter() - begin, sorted(answers, key=lambda answer: answer.number))
