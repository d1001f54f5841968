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
from ninfer.api.chat_response import Envelope, choice_members, closing_members, prompt_progress, usage_object
from ninfer.api.choices import Choices, joined
from ninfer.api.completions_request import CompletionRequest, parse_completion
from ninfer.api.edge import Exchange
from ninfer.api.envelopes import Fault, openai_error
from ninfer.api.fields import refusal, wrong
from ninfer.api.logprobs import CompletionLogprobs
from ninfer.api.preparation import default_preset, output_limit
from ninfer.api.presets import resolve_sampling
from ninfer.api.service import PARSE_ASIDE_BYTES, Service
from ninfer.api.session import Prepared, open_sessions
from ninfer.api.streams import event_stream, gather_choices, json_response
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
    service.check_choices(request.choices)
    sessions = await open_sessions(
        service.gateway,
        exchange,
        lambda request_id: _facts(service, request, request_id, exchange.request_id),
        service.request_log,
        service.observed,
        service.guessing,
        request.choices,
        service.closed(exchange),
    )
    choices = Choices(sessions)
    await choices.prepare(lambda: Prepared(_prepare(service, request), enable_thinking=False))
    envelope = Envelope(f"cmpl-{secrets.token_hex(8)}", int(service.unix_time()), service.model.public_id)
    if request.stream:
        progress = service.generation.prefill_progress
        told = [_logprobs_of(request, service) for _ in sessions]
        writer = _Stream(choices, envelope, request.include_usage, progress, told)
        return event_stream(choices, writer, exchange, service.keep_alive_comment_s)
    found = await gather_choices(choices)
    bodies = []
    for index, (whole, finished) in enumerate(found):
        teller = _logprobs_of(request, service)
        logprobs = teller.more(whole.logprobs) if teller is not None else None
        members = choice_members(finished) if len(found) > 1 else {}
        bodies.append({**_choice(index, _text(whole.deltas), _reason(finished), logprobs), **members})
    end = joined([finished for _, finished in found])
    return json_response({**_body(envelope, *bodies), **_end(end, choices.received_at)})


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
    logprobs   tell of the tokens of each choice, if that is asked for
    """

    keep_alive = sse.KEEP_ALIVE

    def __init__(
        self,
        choices: Choices,
        envelope: Envelope,
        include_usage: bool,
        progress: bool,
        logprobs: Sequence[CompletionLogprobs | None],
    ) -> None:
        self.choices = choices
        self.envelope = envelope
        self.include_usage = include_usage
        self.progress = progress
        self.logprobs = logprobs
        self._admitted_at = 0.0
        self._ends: dict[int, Finished] = {}

    def opening(self) -> bytes:
        return sse.KEEP_ALIVE if self.progress else b""

    def frames_of(self, reply: tuple[int, Reply]) -> bytes:
        index, news = reply
        if isinstance(news, Admitted) and index == 0:
            self._admitted_at = news.at
        if isinstance(news, PrefillProgress) and index == 0:  # the others have the same prompt
            chunk = _body(self.envelope, _choice(0, "", None))
            return self._frame({**chunk, "prompt_progress": prompt_progress(news, self._admitted_at)})
        if isinstance(news, TextDelta):
            teller = self.logprobs[index]
            logprobs = teller.more(news.logprobs) if teller is not None else None
            return self._frame(_body(self.envelope, _choice(index, _text(news.deltas), None, logprobs)))
        if isinstance(news, Finished):
            self._ends[index] = news
            return self._closing(index, news)
        return b""

    def failure(self, fault: Fault) -> bytes:
        return sse.data_frame(openai_error(fault))

    def _closing(self, index: int, finished: Finished) -> bytes:
        count = len(self.choices.sessions)
        own = choice_members(finished) if count > 1 else {}
        last = _body(self.envelope, {**_choice(index, "", _reason(finished)), **own})
        if len(self._ends) < count:
            return self._frame(last)
        end = joined([self._ends[number] for number in range(count)])
        members = _end(end, self.choices.received_at)
        usage = members.pop("usage")
        if not self.include_usage:
            return self._frame({**last, **members}) + sse.DONE
        return self._frame(last) + sse.data_frame({**_body(self.envelope), "usage": usage, **members}) + sse.DONE

    def _frame(self, chunk: Mapping[str, object]) -> bytes:
        return sse.data_frame({**chunk, "usage": None} if self.include_usage else chunk)


def _reason(finished: Finished) -> str:
    stopped = finished.reason in (FinishReason.STOP_TOKEN, FinishReason.STOP_STRING)
    return "stop" if stopped else "length"


def _text(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))


def _choice(
    index: int, text: str, reason: str | None, logprobs: Mapping[str, object] | None = None
) -> dict[str, object]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _body(envelope: Envelope, *choices: Mapping[str, object]) -> dict[str, object]:
    return {
        "id": envelope.id,
        "object": "text_completion",
        "created": envelope.created,
        "model": envelope.model,
        "choices": list(choices),
    }


def _end(finished: Finished, received_at: float) -> dict[str, object]:
    return {"usage": usage_object(finished.usage), **closing_members(finished, received_at)}
