"""``system`` and ``messages`` of a Messages request, in the form that templates take (serving spec, 9.1 and 9.2).

Neighbours of the same role are one turn, joined without a separator; a system message stands where it was sent. A user
turn gives its tool results first, each as a turn of its own, then its text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import structlog

from ninfer.api.cache_control import check_cache_control
from ninfer.api.conversation import Conversation, Turn, assemble
from ninfer.api.fields import Object, array, boolean, mapping, refusal, text, wrong

BILLING_HEADER = "x-anthropic-billing-header:"
ERROR_LINE = "[tool_error]\n"
_ROLES = ("user", "assistant", "system")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Block:
    """A block, its type, and its place in the request."""

    kind: str
    value: Object
    where: str


@dataclass(slots=True)
class _Media:
    """How many images have been seen."""

    items: int = 0


@dataclass(slots=True)
class _Said:
    """What a user turn is made of so far."""

    results: list[Turn] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    is_empty: bool = True  # no text and no picture


def parse_messages_conversation(source: Object) -> Conversation:
    """Check and normalise; raises RequestRejected."""
    turns: list[Turn] = []
    system = _system(source)
    if system:
        turns.append({"role": "system", "content": system})
    sent = array(source, "messages")
    if not sent:
        raise wrong("messages", "a non-empty array")
    read = [_read(message, f"messages[{n}]") for n, message in enumerate(sent)]
    media = _Media()
    for (role, _), messages in groupby(enumerate(read), key=lambda item: (item[1][0], _own_turn(*item))):
        blocks = [block for _, (_, blocks) in messages for block in blocks]
        if role == "system":
            turns.append({"role": "system", "content": "".join(_system_text(block) for block in blocks)})
        elif role == "assistant":
            turns.append(_assistant(blocks))
        else:
            turns += _user(blocks, media, after_calls=bool(turns and turns[-1].get("tool_calls")))
    return assemble(turns, media_items=media.items, message_count=len(sent), field="messages")


def _own_turn(n: int, message: tuple[str, Sequence[_Block]]) -> int:
    """System messages are never joined."""
    return n if message[0] == "system" else -1


def _read(message: object, where: str) -> tuple[str, list[_Block]]:
    if not isinstance(message, dict):
        raise wrong(where, "an object")
    role = text(message, "role", f"{where}.role")
    if role is None:
        raise wrong(f"{where}.role", "a string")
    if role not in _ROLES:
        raise refusal("unsupported_role", f"role '{role}' is not supported", f"{where}.role")
    content = message.get("content")
    if content is None:
        raise wrong(f"{where}.content", "a string or an array of blocks")
    return role, list(_blocks(content, f"{where}.content"))


def _blocks(content: object, where: str) -> Iterator[_Block]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise wrong(where, "a string or an array of blocks")
    for n, value in enumerate(content):
        place = f"{where}[{n}]"
        if not isinstance(value, dict):
            raise wrong(place, "an object")
        kind = text(value, "type", f"{place}.type")
        if kind is None:
            raise wrong(f"{place}.type", "a string")
        check_cache_control(value, place)
        yield _Block(kind, value, place)


def _system(source: Object) -> str:
    content = source.get("system")
    if content is None:
        return ""
    texts = [_system_text(block) for block in _blocks(content, "system")]
    if isinstance(content, list) and texts and texts[0].startswith(BILLING_HEADER):
        log.info("a line of the client's own bookkeeping is left out of the system prompt")
        del texts[0]
    return "\n".join(texts)


def _system_text(block: _Block) -> str:
    if block.kind != "text":
        raise _stranger(block, "system")
    return _text(block)


def _text(block: _Block, member: str = "text") -> str:
    value = text(block.value, member, f"{block.where}.{member}")
    if value is None:
        raise wrong(f"{block.where}.{member}", "a string")
    return value


def _stranger(block: _Block, role: str) -> Exception:
    message = f"{block.where}: a block of type '{block.kind}' is not supported in a {role} message"
    return refusal("modality_not_supported", message, f"{block.where}.type")


def _assistant(blocks: Sequence[_Block]) -> Turn:
    reasoning: list[str] = []
    said: list[str] = []
    calls: list[Mapping[str, object]] = []
    for block in blocks:
        match block.kind:
            case "text":
                said.append(_text(block))
            case "thinking":
                reasoning.append(_text(block, "thinking"))
                text(block.value, "signature", f"{block.where}.signature")
            case "redacted_thinking":
                pass  # nobody but its maker can read it
            case "tool_use":
                calls.append(_call(block))
            case _:
                raise _stranger(block, "assistant")
    ids = [call["id"] for call in calls]
    if len(set(ids)) != len(ids):
        raise refusal("invalid_tool_history", f"{blocks[-1].where}: two calls of a turn have the same id", "messages")
    turn: dict[str, object] = {"role": "assistant", "content": "".join(said)}
    if reasoning:
        turn["reasoning_content"] = "".join(reasoning)
    if calls:
        turn["tool_calls"] = calls
    return turn


def _call(block: _Block) -> Mapping[str, object]:
    call_id, name = _text(block, "id"), _text(block, "name")
    if not call_id or not name:
        raise wrong(block.where, "an object with a non-empty id and name")
    arguments = block.value.get("input")
    if arguments is not None and not isinstance(arguments, dict):
        where = f"{block.where}.input"
        raise refusal("invalid_tool_history", f"{where} must be an object", where)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments or {}}}


def _user(blocks: Sequence[_Block], media: _Media, *, after_calls: bool) -> list[Turn]:
    said = _Said()
    for block in blocks:
        match block.kind:
            case "text":
                piece = _text(block)
                said.pieces.append(piece)
                said.is_empty = said.is_empty and not piece
            case "image":
                _check_image(block)
                media.items += 1
                said.is_empty = False
            case "tool_result":
                if after_calls and not said.is_empty:
                    message = f"{block.where}: tool results must stand before everything else of their message"
                    raise refusal("invalid_tool_history", message, block.where)
                said.results.append(_result(block, media))
            case _:
                raise _stranger(block, "user")
    if said.results and said.is_empty:
        return said.results
    return [*said.results, {"role": "user", "content": "".join(said.pieces)}]


def _result(block: _Block, media: _Media) -> Turn:
    call_id = _text(block, "tool_use_id")
    if not call_id:
        raise wrong(f"{block.where}.tool_use_id", "a non-empty string")
    pieces: list[str] = []
    content = block.value.get("content")
    for inner in _blocks(content if content is not None else "", f"{block.where}.content"):
        if inner.kind == "text":
            pieces.append(_text(inner))
        elif inner.kind == "image":
            _check_image(inner)
            media.items += 1
        else:
            raise _stranger(inner, "tool_result")
    failed = boolean(block.value, "is_error", f"{block.where}.is_error") or False
    return {"role": "tool", "content": (ERROR_LINE if failed else "") + "".join(pieces), "tool_call_id": call_id}


def _check_image(block: _Block) -> None:
    where = f"{block.where}.source"
    source = mapping(block.value, "source", where)
    kind = text(source, "type", f"{where}.type") if source is not None else None
    if source is None or kind is None:
        raise wrong(where, "an object with a type")
    if kind == "base64":
        for member in ("media_type", "data"):
            if not text(source, member, f"{where}.{member}"):
                raise wrong(f"{where}.{member}", "a non-empty string")
    elif kind == "url":
        url = text(source, "url", f"{where}.url") or ""
        if not url.startswith(("http://", "https://", "data:")):
            raise refusal("invalid_media", f"{where}.url must be an http:, https: or data: URL", f"{where}.url")
    else:
        message = f"{where}: a source of type '{kind}' is not supported"
        raise refusal("modality_not_supported", message, f"{where}.type")
