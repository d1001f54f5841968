"""The ``messages`` of a Chat request, checked and brought into the form that templates take (serving spec, 5.2, 7.6).

What comes out has string contents only, `developer` as `system`, tool arguments as objects, results in call order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from ninfer.api.fields import Object, array, mapping, refusal, text, word, wrong
from ninfer.errors import RequestRejected

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MEDIA_PARTS = {"user": ("image_url", "video_url"), "tool": ("image_url",)}
_LEGACY_ID = "function_call"


Turn = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A checked conversation.

    messages           for the template, the prefill left out
    prefill            text of a final assistant message, which generation continues; None without one
    prefill_refusal    why that message cannot be continued at all; checked when thinking is known
    media_items        how many images and videos it holds
    message_count      messages as they were sent
    has_tool_history   whether there are calls or results in it
    """

    messages: tuple[Mapping[str, object], ...]
    prefill: str | None
    prefill_refusal: str | None
    media_items: int
    message_count: int
    has_tool_history: bool


def parse_conversation(source: Object) -> Conversation:
    """Check and normalise ``messages``; raises RequestRejected."""
    sent = array(source, "messages")
    if not sent:
        raise wrong("messages", "a non-empty array")
    media = 0
    turns: list[Turn] = []
    for n, message in enumerate(sent):
        if not isinstance(message, dict):
            raise wrong(f"messages[{n}]", "an object")
        turn, items = _Turn(message, f"messages[{n}]").read()
        turns.append(turn)
        media += items
    return assemble(turns, media_items=media, message_count=len(sent), field="messages")


def assemble(turns: Sequence[Turn], *, media_items: int, message_count: int, field: str) -> Conversation:
    """The conversation of turns that are checked one by one; raises RequestRejected where they do not fit together.

    turns   `role`, `content` as a string, `reasoning_content`, `tool_calls` with ids; `tool_call_id` of results
    field   the request field that holds them
    """
    has_tools = any("tool_calls" in turn or turn["role"] == "tool" for turn in turns)
    ordered = _with_results_in_call_order(turns, field)
    prefill, prefill_refusal = _prefill(ordered)
    if prefill is not None:
        ordered.pop()
    if not any(_is_query(turn) for turn in ordered) and not media_items:
        raise refusal("invalid_prompt", f"{field} must hold at least one user message", field)
    messages = tuple({key: value for key, value in turn.items() if key != "tool_call_id"} for turn in ordered)
    return Conversation(messages, prefill, prefill_refusal, media_items, message_count, has_tools)


def _is_query(turn: Turn) -> bool:
    content = str(turn["content"]).strip()
    wrapped = content.startswith("<tool_response>") and content.endswith("</tool_response>")
    return turn["role"] == "user" and not wrapped


class _Turn:
    """Reads one message."""

    def __init__(self, message: Object, where: str) -> None:
        self._message = message
        self._where = where
        self._media = 0

    def read(self) -> tuple[dict[str, object], int]:
        """The turn for the template, and its number of media items."""
        role = text(self._message, "role", f"{self._where}.role")
        if role is None:
            raise wrong(f"{self._where}.role", "a string")
        if role not in _ROLES:
            raise refusal("unsupported_role", f"role '{role}' is not supported", f"{self._where}.role")
        self._check_strangers(role)
        if role == "assistant":
            return self._assistant(), self._media
        content = self._content(role)
        if content is None:
            raise wrong(f"{self._where}.content", "a string or an array of parts")
        if role in ("tool", "function"):
            return {"role": "tool", "content": content, "tool_call_id": self._result_id(role)}, self._media
        return {"role": "system" if role == "developer" else role, "content": content}, self._media

    def _check_strangers(self, role: str) -> None:
        name = text(self._message, "name", f"{self._where}.name")
        if name and role not in ("tool", "function"):
            raise refusal(
                "parameter_not_supported",
                f"{self._where}.name: the model's prompt has no place for the name of a participant",
                f"{self._where}.name",
            )
        for member, owner in (("tool_calls", "assistant"), ("function_call", "assistant"), ("tool_call_id", "tool")):
            if self._message.get(member) is not None and role != owner:
                where = f"{self._where}.{member}"
                raise refusal("invalid_tool_history", f"{where} belongs to messages of role {owner}", where)

    def _content(self, role: str) -> str | None:
        content = self._message.get("content")
        if content is None or isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise wrong(f"{self._where}.content", "a string or an array of parts")
        return "".join(self._part(part, role, f"{self._where}.content[{n}]") for n, part in enumerate(content))

    def _part(self, part: object, role: str, where: str) -> str:
        if not isinstance(part, dict):
            raise wrong(where, "an object")
        kind = text(part, "type", f"{where}.type")
        if kind is None:
            raise wrong(f"{where}.type", "a string")
        check_breakpoint(part, where)
        if kind == "text" or (kind == "refusal" and role == "assistant"):
            value = text(part, kind, f"{where}.{kind}")
            if value is None:
                raise wrong(f"{where}.{kind}", "a string")
            return value
        if kind not in _MEDIA_PARTS.get(role, ()):
            message = f"{where}: a part of type '{kind}' is not supported in a {role} message"
            raise refusal("modality_not_supported", message, f"{where}.type")
        self._check_media(part, kind, f"{where}.{kind}")
        self._media += 1
        return ""

    @staticmethod
    def _check_media(part: Object, kind: str, where: str) -> None:
        source = part.get(kind)
        url = source.get("url") if isinstance(source, dict) else source
        if not isinstance(url, str):
            raise wrong(where, "a string or an object with a url")
        if not url.startswith(("http://", "https://", "data:")):
            raise refusal("invalid_media", f"{where} must be an http:, https: or data: URL", where)
        detail = source.get("detail") if isinstance(source, dict) else None
        if detail not in (None, "auto"):
            raise refusal("image_detail_not_supported", f"{where}.detail must be 'auto'", f"{where}.detail")

    def _assistant(self) -> dict[str, object]:
        turn: dict[str, object] = {"role": "assistant"}
        text(self._message, "refusal", f"{self._where}.refusal")
        reasoning = text(self._message, "reasoning_content", f"{self._where}.reasoning_content")
        if reasoning is None:
            reasoning = text(self._message, "reasoning", f"{self._where}.reasoning")
        calls = self._calls()
        content = self._content("assistant")
        if content is None and not calls:
            raise wrong(f"{self._where}.content", "a string or an array of parts, unless there are tool_calls")
        turn["content"] = content or ""
        if reasoning is not None:
            turn["reasoning_content"] = reasoning
        if calls:
            turn["tool_calls"] = calls
        return turn

    def _calls(self) -> list[Mapping[str, object]]:
        calls: list[Mapping[str, object]] = []
        for n, call in enumerate(array(self._message, "tool_calls", f"{self._where}.tool_calls") or ()):
            where = f"{self._where}.tool_calls[{n}]"
            if not isinstance(call, dict) or not isinstance(call.get("id"), str) or not call["id"]:
                raise wrong(where, "an object with a non-empty id")
            if call.get("type") != "function":
                message = f"{where}: a call of type '{call.get('type')}' cannot be told to the model"
                raise refusal("tool_type_not_supported", message, f"{where}.type")
            calls.append({"id": call["id"], "type": "function", "function": _called(call, where)})
        legacy = mapping(self._message, "function_call", f"{self._where}.function_call")
        if legacy is not None:
            if calls:
                message = f"{self._where} has both tool_calls and function_call"
                raise refusal("invalid_tool_history", message, f"{self._where}.function_call")
            function = _called({"function": legacy}, f"{self._where}.function_call")
            calls.append({"id": f"{_LEGACY_ID}:{function['name']}", "type": "function", "function": function})
        ids = [call["id"] for call in calls]
        if len(set(ids)) != len(ids):
            raise refusal(
                "invalid_tool_history", f"{self._where}: two calls have the same id", f"{self._where}.tool_calls"
            )
        return calls

    def _result_id(self, role: str) -> str:
        name = text(self._message, "name", f"{self._where}.name")
        if role == "function":
            if not name:
                raise wrong(f"{self._where}.name", "a non-empty string")
            return f"{_LEGACY_ID}:{name}"
        call_id = text(self._message, "tool_call_id", f"{self._where}.tool_call_id")
        if not call_id:
            raise wrong(f"{self._where}.tool_call_id", "a non-empty string")
        return call_id


def _called(call: Object, where: str) -> dict[str, object]:
    function = mapping(call, "function", f"{where}.function")
    name = text(function, "name", f"{where}.function.name") if function is not None else None
    if function is None or not name:
        raise wrong(f"{where}.function", "an object with a non-empty name")
    return {"name": name, "arguments": _arguments(function.get("arguments"), f"{where}.function.arguments")}


def _arguments(value: object, where: str) -> Object:
    if isinstance(value, str):
        try:
            value = orjson.loads(value) if value else None
        except orjson.JSONDecodeError:
            raise _bad_arguments(where) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _bad_arguments(where)
    return value


def _bad_arguments(where: str) -> RequestRejected:
    return refusal("invalid_tool_history", f"{where} must be a JSON object, or a string that holds one", where)


def check_breakpoint(part: Object, where: str) -> None:
    """A cache marker on a part: checked, without effect in this build (serving spec, 14.8)."""
    param = f"{where}.prompt_cache_breakpoint"
    value = part.get("prompt_cache_breakpoint")
    if value is None:
        return
    if not isinstance(value, dict) or set(value) - {"mode"}:
        raise refusal("parameter_not_supported", f"{param} must be an object with the one member mode", param)
    word(value, "mode", ("explicit",), f"{param}.mode")


def _with_results_in_call_order(turns: Sequence[Turn], field: str) -> list[Turn]:
    """Results behind each assistant turn in the order of its calls; those before any assistant turn as they are."""
    ordered: list[Turn] = []
    seen_assistant = False
    n = 0
    while n < len(turns):
        turn = turns[n]
        seen_assistant = seen_assistant or turn["role"] == "assistant"
        ordered.append(turn)
        n += 1
        if turn["role"] == "tool" and seen_assistant:
            message = f"tool result '{turn['tool_call_id']}' answers no call of the assistant turn before it"
            raise refusal("invalid_tool_history", message, field)
        calls = turn.get("tool_calls")
        if not isinstance(calls, list) or n == len(turns):
            continue
        ids = {call["id"] for call in calls}
        results: dict[object, Turn] = {}
        while n < len(turns) and turns[n]["role"] == "tool":
            call_id = turns[n]["tool_call_id"]
            if call_id in results or call_id not in ids:
                message = f"tool result '{call_id}' is given twice or answers no call of the assistant turn before it"
                raise refusal("invalid_tool_history", message, field)
            results[call_id] = turns[n]
            n += 1
        if len(results) != len(calls):
            missing = next(call["id"] for call in calls if call["id"] not in results)
            raise refusal("invalid_tool_history", f"tool call '{missing}' has no result", field)
        ordered += [results[call["id"]] for call in calls]
    return ordered


def _prefill(turns: Sequence[Turn]) -> tuple[str | None, str | None]:
    last = turns[-1]
    if last["role"] != "assistant":
        return None, None
    if "tool_calls" in last:
        return "", "an assistant message at the end cannot hold tool calls"
    if last.get("reasoning_content"):
        return "", "an assistant message at the end cannot hold reasoning"
    return str(last["content"]), None
