"""A lane actor: turns the tokens drawn on its lane into text for the client of the request it serves."""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ninfer.actors.masks import Masks
from ninfer.actors.messages import (
    Admitted,
    Assign,
    Close,
    CloseWithError,
    Draw,
    Failed,
    Finished,
    GenerationRequest,
    LaneMessage,
    PrefillProgress,
    Progress,
    Reply,
    ReplySender,
    TextDelta,
    Usage,
)
from ninfer.actors.runtime.mailbox import Mailbox
from ninfer.actors.runtime.replies import send_last, send_reply
from ninfer.errors import ActorStopped
from ninfer.scheduler.events import StopStringFound
from ninfer.speculation.statistics import DraftStatistics, landed
from ninfer.step import TokenLogprobs
from ninfer.text.output import Delta, OutputParser, ToolUse
from ninfer.text.tokenizer import Tokenizer
from ninfer.types import FinishReason


@dataclass(slots=True)
class _Service:
    """The request being served: its parser, its counts, its times."""

    request_id: int
    request: GenerationRequest
    replies: ReplySender
    parser: OutputParser
    cached_tokens: int
    admitted_at: float
    way: str
    host_restored: bool
    first_token_at: float | None = None
    last_token_at: float | None = None
    guesses: DraftStatistics = field(default_factory=DraftStatistics)
    logprobs: deque[TokenLogprobs] = field(default_factory=deque)  # of tokens from number `logprobs_from` on
    logprobs_from: int = 0

    def drop_logprobs(self, before: int) -> None:
        """Forget those of tokens in front of this one."""
        while self.logprobs_from < before:
            self.logprobs.popleft()
            self.logprobs_from += 1


class LaneActor:
    """Serves one request at a time. What arrives for a request it no longer serves was on its way when that ended.

    The mailbox is unlimited because its only writers, the steps of one lane, are limited by the output of the request.

    decoded_tokens   of all answers so far, without the first of each, which comes with the prompt
    """

    def __init__(
        self,
        lane: int,
        tokenizer: Tokenizer,
        masks: Masks,
        report: Callable[[StopStringFound], None],
        *,
        speculates: bool = False,
    ) -> None:
        self.lane = lane
        self.mailbox: Mailbox[LaneMessage] = Mailbox(f"lane {lane}", math.inf)
        self._tokenizer = tokenizer
        self._masks = masks
        self._report = report
        self._speculates = speculates
        self._service: _Service | None = None
        self.decoded_tokens = 0

    async def run(self) -> None:
        """Handle messages until the mailbox is closed."""
        async for message in self.mailbox.messages():
            if isinstance(message, Close):
                await self._masks.settled(message.request_id)  # its last words say where its constraint stands
            self.handle(message)

    def stop(self) -> None:
        """Answer whoever is still served here."""
        left = self.mailbox.drain()
        assigned = [message.replies for message in left if isinstance(message, Assign)]
        if self._service is not None:
            assigned.append(self._service.replies)
        for replies in assigned:
            send_last(replies, Failed(ActorStopped("the server has stopped")))

    def handle(self, message: LaneMessage) -> None:
        """Take one message; never waits."""
        if isinstance(message, Assign):
            self._assign(message)
            return
        service = self._service
        if service is None or service.request_id != message.request_id:
            return
        match message:
            case Draw():
                self._draw(service, message)
            case Progress():
                if service.request.progress:
                    self._publish_progress(service, message.processed, message.at)
            case Close():
                self._close(service, message)
            case CloseWithError():
                self._service = None
                send_last(service.replies, Failed(message.error))

    def _assign(self, message: Assign) -> None:
        request = message.request
        parser = OutputParser(
            self._tokenizer.text_bytes,
            stop_ids=frozenset(request.stop_ids),
            opens_think=request.opens_think,
            stops=request.stops,
            stops_in_reasoning=request.stops_in_reasoning,
            tool_use=_tool_use(request),
            exact=request.enforced is not None and request.enforced.constraint.answer is not None,
        )
        service = _Service(
            message.request_id,
            request,
            message.replies,
            parser,
            message.cached_tokens,
            admitted_at=message.at,
            way=message.way,
            host_restored=message.host_restored,
        )
        self._service = service
        admitted = Admitted(self.lane, message.cached_tokens, message.at, message.way, message.host_restored)
        self._send(service, admitted)
        if request.progress:
            self._publish_progress(service, message.cached_tokens, message.at)

    def _publish_progress(self, service: _Service, processed: int, at: float) -> None:
        total = len(service.request.prompt_ids)
        self._send(service, PrefillProgress(processed, total, service.cached_tokens, at))

    def _draw(self, service: _Service, message: Draw) -> None:
        parser = service.parser
        if parser.ended:
            return  # drawn while the stop string was being reported
        if service.first_token_at is None:
            service.first_token_at = message.at
        service.last_token_at = message.at
        if self._speculates and message.guesses is not None:
            drafted, accepted, copied = message.guesses
            service.guesses += landed(drafted, accepted, copied=copied)
        service.logprobs.extend(message.logprobs)
        before = max(1, parser.completion_tokens)
        deltas = parser.feed(message.token_ids)
        self.decoded_tokens += parser.completion_tokens - before
        if deltas:
            self._publish(service, deltas)
        if parser.stop_string is not None:
            self._report(StopStringFound(service.request_id, parser.completion_tokens))

    def _close(self, service: _Service, message: Close) -> None:
        self._service = None
        reason = message.reason
        parser = service.parser
        deltas = parser.finish()
        if parser.stop_string is not None:
            reason = FinishReason.STOP_STRING  # a limit was met in the same step; the text ends at the stop string
        if deltas:
            self._publish(service, deltas)
        usage = Usage(
            prompt_tokens=len(service.request.prompt_ids),
            cached_tokens=service.cached_tokens,
            completion_tokens=parser.completion_tokens,
            reasoning_tokens=parser.reasoning_tokens,
        )
        last = Finished(
            reason,
            usage,
            self.lane,
            service.admitted_at,
            service.first_token_at,
            service.last_token_at,
            stop_string=parser.stop_string,
            way=service.way,
            host_restored=service.host_restored,
            session_digest=message.session_digest,
            tool_calls=parser.tool_calls,
            constraint=self._masks.report(service.request_id, terminated=parser.stop_id is not None),
            speculation=service.guesses if self._speculates else None,
            thinking=self._masks.control(service.request_id),
        )
        send_last(service.replies, last)

    def _publish(self, service: _Service, deltas: list[Delta]) -> None:
        count = service.parser.completion_tokens
        told = _told(service) if service.request.logprobs is not None else ()
        self._send(service, TextDelta(tuple(deltas), count, service.first_token_at, service.last_token_at, told))

    @staticmethod
    def _send(service: _Service, reply: Reply) -> None:
        send_reply(service.replies, reply)


def _told(service: _Service) -> tuple[TokenLogprobs, ...]:
    """Of the tokens of the answer that is published now; what is known of those in front of later ones is let go."""
    tokens = service.parser.take_content_tokens()
    service.drop_logprobs(tokens.start)
    told = tuple(service.logprobs[at] for at in range(len(tokens)))
    service.drop_logprobs(service.parser.tokens_told)
    return told


def _tool_use(request: GenerationRequest) -> ToolUse | None:
    if request.tools is None:
        return None
    enforced = request.enforced
    return ToolUse(
        request.tools,
        lambda: f"call_{secrets.token_hex(8)}",
        request.tolerant_tool_calls,
        exclusive=enforced is not None and enforced.constraint.is_exclusive,
    )
