"""``POST /v1/completions``: the model goes on with a text, without a template (OpenAI's older protocol).

A raw prompt is written by the client as a whole, so there are no turns in it to protect: control spellings stand for
control tokens, as clients with templates of their own and those that fill in the middle of a text need it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from anyio import to_thread
from quart import Response

from ninfer.actors.messages import Admitted, Finished, GenerationRequest, PrefillProgress, Reply, TextDelta
from ninfer.api import sse
from ninfer.api.asked import CHAT
from ninfer.api.body import parse_object
from ninfer.api.chat_response import Envelope, closing_members, prompt_progress, usage_object
from ninfer.api.completions_request import CompletionRequest, parse_completion
from ninfer.api.edge import Exchange
from ninfer.api.envelopes import Fault, openai_error
from ninfer.api.fields import refusal, wrong
from ninfer.api.logprobs import CompletionLogprobs
from ninfer.api.preparation import default_preset, output_limit
from ninfer.api.presets import resolve_sampling
from ninfer.api.service import PARSE_ASIDE_BYTES, Service
from ninfer.api.session import Prepared, Session, open_session
from ninfer.api.streams import event_stream, gather, json_response
from ninfer.api.tokens import are_tokens
from ninfer.errors import ModelNotFound
from ninfer.requestlog.records import RequestFacts
from ninfer.text.output import ContentDelta, Delta
from ninfer.types import FinishReason, Marks

PROTOCOL = "openai_completions"


async def completion(service: Service, body: bytes, exchange: Exchange) -> Response:
    """Answer one request; raises RequestRejected and Unavailable up to the queue."""
    if len(body) < PARSE_ASIDE_BYTES:
        request = _check(service, body)
    else:
        request = await to_thread.run_sync(_check, service, body)
    session = await open_session(
        service.gateway,
        exchange,
        lambda request_id: _facts(service, request, request_id, exchange.request_id),
        service.request_log,
        service.observed,
        service.guessing,
    )
    await session.prepare(lambda: Prepared(_prepare(service, request), enable_thinking=False))
    envelope = Envelope(f"cmpl-{secrets.token_hex(8)}", int(service.unix_time()), service.model.public_id)
    if request.stream:
        progress = service.generation.prefill_progress
        writer = _Stream(session, envelope, request.include_usage, progress, _logprobs_of(request, service))
        return event_stream(session, writer, service.keep_alive_comment_s)
    whole, finished = await gather(session)
    told = _logprobs_of(request, service)
    logprobs = told.more(whole.logprobs) if told is not None else None
    answer = _body(envelope, _text(whole.deltas), _reason(finished), logprobs)
    return json_response({**answer, **_end(finished, session.received_at)})


def _check(service: Service, body: bytes) -> CompletionRequest:
    request = parse_completion(parse_object(body))
    if request.model != service.model.public_id:
        raise ModelNotFound(request.model)
    return request


def _facts(service: Service, request: CompletionRequest, request_id: int, x_request_id: str) -> RequestFacts:
    limit = output_limit(request.max_tokens, service.generation, service.model.max_context_tokens)
    return RequestFacts(
        request_id=request_id,
        x_request_id=x_request_id,
        protocol=PROTOCOL,
        model=request.model,
        stream=request.stream,
        message_count=0,
        media_item_count=0,
        requested_output_tokens=limit.tokens,
        requested_output_tokens_source="client" if request.says_max_tokens else "server_default",
        tool_count=0,
        tool_choice="none",
        has_tool_history=False,
        requested_reasoning_effort=None,
        preserve_thinking=None,
        prompt_cache_key=None,
    )


def _prepare(service: Service, request: CompletionRequest) -> GenerationRequest:
    """Tokenise and measure; runs on a worker thread."""
    model, server = service.model, service.generation
    tokenizer = model.tokenizer
    if isinstance(request.prompt, str):
        prompt_ids = tuple(tokenizer.encode_with_control(request.prompt))
    else:
        prompt_ids = request.prompt
        if not are_tokens(tokenizer, prompt_ids):
            raise wrong("prompt", "an array of ids of tokens")
    if len(prompt_ids) > model.max_context_tokens:
        message = CHAT.too_long.format(tokens=len(prompt_ids), ceiling=model.max_context_tokens)
        raise refusal("context_length_exceeded", message, "prompt")
    return GenerationRequest(
        prompt_ids=prompt_ids,
        opens_think=False,  # what the model writes is one text, whatever it means by it
        sampling=resolve_sampling(
            request.sampling, server, default_preset(model, server), random_seed=secrets.randbits(64)
        ),
        max_tokens=output_limit(request.max_tokens, server, model.max_context_tokens).tokens,
        stops=request.stops,
        stop_ids=() if request.ignore_eos else tuple(sorted(tokenizer.stop_ids)),
        progress=request.stream and server.prefill_progress,
        marks=Marks(turn=len(prompt_ids)),  # raw text has no turns: its end is what the next text may go on from
        logprobs=request.logprobs,
    )


def _logprobs_of(request: CompletionRequest, service: Service) -> CompletionLogprobs | None:
    return CompletionLogprobs(service.model.tokenizer) if request.logprobs is not None else None


class _Stream:
    """The frames of one streamed completion.

    progress   whether they show how far the prompt is read
    logprobs   tells of the tokens, if that is asked for
    """

    keep_alive = sse.KEEP_ALIVE

    def __init__(
        self,
        session: Session,
        envelope: Envelope,
        include_usage: bool,
        progress: bool,
        logprobs: CompletionLogprobs | None,
    ) -> None:
        self.session = session
        self.envelope = envelope
        self.include_usage = include_usage
        self.progress = progress
        self.logprobs = logprobs
        self._admitted_at = 0.0

    def opening(self) -> bytes:
        return sse.KEEP_ALIVE if self.progress else b""

    def frames_of(self, reply: Reply) -> bytes:
        if isinstance(reply, Admitted):
            self._admitted_at = reply.at
        if isinstance(reply, PrefillProgress):
            chunk = _body(self.envelope, "", None)
            return self._frame({**chunk, "prompt_progress": prompt_progress(reply, self._admitted_at)})
        if isinstance(reply, TextDelta):
            logprobs = self.logprobs.more(reply.logprobs) if self.logprobs is not None else None
            return self._frame(_body(self.envelope, _text(reply.deltas), None, logprobs))
        if isinstance(reply, Finished):
            return self._closing(reply) + sse.DONE
        return b""

    def failure(self, fault: Fault) -> bytes:
        return sse.data_frame(openai_error(fault))

    def _closing(self, finished: Finished) -> bytes:
        last = _body(self.envelope, "", _reason(finished))
        members = _end(finished, self.session.received_at)
        usage = members.pop("usage")
        if not self.include_usage:
            return self._frame({**last, **members})
        return self._frame(last) + sse.data_frame(
            {**_body(self.envelope, "", None), "choices": [], "usage": usage, **members}
        )

    def _frame(self, chunk: Mapping[str, object]) -> bytes:
        return sse.data_frame({**chunk, "usage": None} if self.include_usage else chunk)


def _reason(finished: Finished) -> str:
    stopped = finished.reason in (FinishReason.STOP_TOKEN, FinishReason.STOP_STRING)
    return "stop" if stopped else "length"


def _text(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))


def _body(
    envelope: Envelope, text: str, reason: str | None, logprobs: Mapping[str, object] | None = None
) -> dict[str, object]:
    return {
        "id": envelope.id,
        "object": "text_completion",
        "created": envelope.created,
        "model": envelope.model,
        "choices": [{"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}],
    }


def _end(finished: Finished, received_at: float) -> dict[str, object]:
    return {"usage": usage_object(finished.usage), **closing_members(finished, received_at)}
