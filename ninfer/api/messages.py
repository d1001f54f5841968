"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens`` (serving spec, 9)."""

from __future__ import annotations

from quart import Response

from ninfer.actors.messages import Reply
from ninfer.api.edge import Exchange
from ninfer.api.messages_request import parse_count, parse_messages
from ninfer.api.messages_response import MessageStream, whole_message
from ninfer.api.service import Service
from ninfer.api.streams import Source, event_stream, gather, json_response


async def create_message(service: Service, body: bytes, exchange: Exchange) -> Response:
    """Answer one request; raises RequestRejected and Unavailable up to the queue, in the order of section 3.2."""
    request, thinking = await service.check(body, parse_messages)
    session = await service.submit(request, thinking, exchange)
    if request.stream:
        stream = MessageStream(
            request.model, session.prompt_tokens, exchange.request_id, shows_life=request.return_progress
        )
        source: Source[Reply] = session
        return event_stream(source, stream, exchange, service.keep_alive_comment_s)
    whole, finished = await gather(session)
    return json_response(whole_message(request.model, whole.deltas, finished))


async def count_tokens(service: Service, body: bytes) -> Response:
    """The length of the prompt that the same request to ``/v1/messages`` would have; raises RequestRejected."""
    request, thinking = await service.check(body, parse_count)
    return json_response({"input_tokens": await service.count(request, thinking)})
