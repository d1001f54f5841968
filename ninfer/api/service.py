"""What the routes of all protocols do alike: check a request, take capacity for it, prepare and submit it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import structlog
from anyio import to_thread

from ninfer.actors.gateway import Gateway
from ninfer.api import preparation
from ninfer.api.asked import Asked
from ninfer.api.body import parse_object
from ninfer.api.choices import Choices
from ninfer.api.edge import Exchange
from ninfer.api.fields import Object, refusal
from ninfer.api.observed import Observed, Outcome
from ninfer.api.openai_fields import CHOICES_MAX
from ninfer.api.preparation import Model
from ninfer.api.session import Closed, Prepared, Session, open_sessions
from ninfer.api.thinking import Thinking
from ninfer.config import GenerationSettings
from ninfer.errors import ModelNotFound, RequestRejected
from ninfer.requestlog.records import NO_GUESSING, Guessing, RequestFacts
from ninfer.requestlog.writer import RequestLog
from ninfer.tracing import Ended

# Bodies from here on are parsed on a worker thread; smaller ones take well under a millisecond.
PARSE_ASIDE_BYTES = 64 * 1024

A = TypeVar("A", bound=Asked)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """What the routes need.

    unix_time       the wall clock in seconds
    guessing        how tokens are guessed
    trace           makes a trace of a request that is over, if there is a collector for it
    most_requests   that may be in the queue and on lanes together
    """

    gateway: Gateway
    model: Model
    generation: GenerationSettings
    request_log: RequestLog
    keep_alive_comment_s: float
    unix_time: Callable[[], float]
    observed: Observed = field(default_factory=Observed)
    guessing: Guessing = NO_GUESSING
    most_requests: int = CHOICES_MAX
    trace: Callable[[Ended], None] | None = None

    def closed(self, exchange: Exchange) -> Closed | None:
        """Who is told of requests of this exchange that are over."""
        trace = self.trace
        if trace is None:
            return None

        def record(facts: RequestFacts, outcome: Outcome) -> None:
            timeline = self.gateway.timeline(str(facts.request_id))
            if timeline is not None:  # of many at once the oldest are forgotten
                model, protocol = self.model.public_id, facts.protocol
                trace(Ended(timeline, protocol, model, facts.stream, outcome.value, exchange.trace_parent))

        return record

    async def check(self, body: bytes, parse: Callable[[Object], A]) -> tuple[A, Thinking]:
        """The request of a body; raises RequestRejected for all that shows before capacity is taken (3.2)."""
        if len(body) < PARSE_ASIDE_BYTES:
            return self._check(body, parse)
        return await to_thread.run_sync(self._check, body, parse)

    def _check(self, body: bytes, parse: Callable[[Object], A]) -> tuple[A, Thinking]:
        asked = parse(parse_object(body))
        if asked.stream and self.generation.prefill_progress:
            asked = replace(asked, return_progress=True)
        if asked.thinking_budget is None:
            asked = replace(asked, thinking_budget=self.generation.thinking_budget)
        thinking = preparation.resolve_request_thinking(asked, self.model, self.generation)
        if asked.model != self.model.public_id and not asked.api.any_model:
            raise ModelNotFound(asked.model)
        if asked.conversation.media_items:
            field = asked.api.prompt_field
            message = f"there are images or videos in {field}, and this server has no vision"
            raise RequestRejected(message, code="vision_disabled", param=field)
        for kind in asked.tools.dropped:
            log.info("a tool that only another server can run is left out", type=kind)
        if thinking.ignored_effort is not None:
            log.info("reasoning effort has no effect", effort=thinking.ignored_effort)
        return asked, thinking

    async def submit(self, asked: Asked, thinking: Thinking, exchange: Exchange) -> Session:
        """Take capacity, prepare, queue; raises RequestRejected and Unavailable."""
        (session,) = await self._sessions(asked, thinking, exchange, 1)
        await session.prepare(lambda: self._prepare(asked, thinking))
        return session

    async def submit_choices(self, asked: Asked, thinking: Thinking, exchange: Exchange, count: int) -> Choices:
        """The same for several answers to one prompt."""
        self.check_choices(count)
        choices = Choices(await self._sessions(asked, thinking, exchange, count))
        await choices.prepare(lambda: self._prepare(asked, thinking))
        return choices

    def check_choices(self, count: int) -> None:
        """Raises RequestRejected for more answers than this server could ever hold at once."""
        if count > self.most_requests:
            message = f"n must be at most {self.most_requests}: this server holds no more requests at once"
            raise refusal("invalid_value", message, "n")

    async def _sessions(self, asked: Asked, thinking: Thinking, exchange: Exchange, count: int) -> tuple[Session, ...]:
        return await open_sessions(
            self.gateway,
            exchange,
            lambda request_id: self._facts(asked, thinking, request_id, exchange.request_id),
            self.request_log,
            self.observed,
            self.guessing,
            count,
            self.closed(exchange),
        )

    def _prepare(self, asked: Asked, thinking: Thinking) -> Prepared:
        prepared = preparation.prepare(asked, thinking, self.model, self.generation)
        return Prepared(prepared, thinking.on, asked.tools.one_call, asked.thinking_budget)

    async def count(self, asked: Asked, thinking: Thinking) -> int:
        """Tokens of the prompt, for a request that is only counted; it takes no capacity and may be of any length."""
        rendered = await to_thread.run_sync(preparation.render, asked, thinking, self.model)
        return len(rendered.ids)

    def _facts(self, asked: Asked, thinking: Thinking, request_id: int, x_request_id: str) -> RequestFacts:
        limit = preparation.output_limit(asked.max_tokens, self.generation, self.model.max_context_tokens)
        return RequestFacts(
            request_id=request_id,
            x_request_id=x_request_id,
            protocol=asked.api.name,
            model=asked.model,
            stream=asked.stream,
            message_count=asked.conversation.message_count,
            media_item_count=asked.conversation.media_items,
            requested_output_tokens=limit.tokens,
            requested_output_tokens_source=limit.source,
            tool_count=len(asked.tools.declarations),
            tool_choice=asked.tools.choice,
            has_tool_history=asked.conversation.has_tool_history,
            requested_reasoning_effort=asked.thinking.effort,
            preserve_thinking=thinking.preserve,
            prompt_cache_key=asked.cache_key,
            preserve_thinking_semantic_change=asked.preserve_is_changed,
            constraint_kind=asked.constraint.kind if asked.constraint is not None else None,
        )
