"""Items of the Responses API, checked and brought into one form (serving spec, 8.2). Pure but for new ids.

That form is what a stored response lists as its input and what continuations and references are built from.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from ninfer.api.conversation import check_breakpoint
from ninfer.api.fields import Object, array, refusal, text, wrong
from ninfer.errors import RequestRejected

ID_PREFIX = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
# Members of each kind of item beside `type`, `id` and `status`.
_MEMBERS = {
    "message": ("role", "content", "phase"),
    "reasoning": ("summary", "content", "encrypted_content"),
    "function_call": ("call_id", "name", "arguments", "namespace"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input", "namespace"),
    "custom_tool_call_output": ("call_id", "output"),
    "item_reference": (),
}
_PART_MEMBERS = {
    "input_text": ("text", "prompt_cache_breakpoint"),
    "output_text": ("text", "annotations", "logprobs", "prompt_cache_breakpoint"),
    "refusal": ("refusal",),
    "input_image": ("image_url", "detail", "file_id", "prompt_cache_breakpoint"),
    "input_video": ("video_url", "detail", "prompt_cache_breakpoint"),
}
_PART_ROLES = {
    "input_text": ("user", "assistant", "system", "developer"),
    "output_text": ("assistant",),
    "refusal": ("assistant",),
    "input_image": ("user", "assistant"),
    "input_video": ("user",),
}
_STRANGERS = {"input_file": "file_inputs_not_supported", "input_audio": "audio_inputs_not_supported"}
_ROLES = ("user", "assistant", "system", "developer")

Find = Callable[[str], "Item | None"]


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One item in its normal form, and how many bytes that takes; never changed, so that histories share it."""

    wire: Object
    size: int

    @property
    def id(self) -> str:
        return str(self.wire["id"])


def item_of(wire: Object) -> Item:
    """An item that is in its normal form already."""
    return Item(wire, len(orjson.dumps(wire)))


def new_id(kind: str) -> str:
    """An id for an item of this kind."""
    return f"{ID_PREFIX[kind]}_{secrets.token_hex(16)}"


def parse_items(sent: Sequence[object], find: Find) -> tuple[Item, ...]:
    """The items of ``input``; raises RequestRejected.

    find   an item of a stored response by its id
    """
    items = [item for n, value in enumerate(sent) if (item := _parse(value, f"input[{n}]", find)) is not None]
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise refusal("invalid_value", f"two input items have the id '{item.id}'", "input")
        seen.add(item.id)
    return tuple(items)


def _parse(value: object, where: str, find: Find) -> Item | None:
    if not isinstance(value, dict):
        raise wrong(where, "an object")
    kind = text(value, "type", f"{where}.type")
    if kind is None and value.get("role") is not None:
        kind = "message"
    if kind is None:
        raise wrong(f"{where}.type", "a string")
    if kind not in _MEMBERS:
        code = _STRANGERS.get(kind, "item_type_not_supported")
        raise refusal(code, f"{where}: items of type '{kind}' are not supported", f"{where}.type")
    _check_members(value, ("id", "status", *_MEMBERS[kind]), where)
    item_id = text(value, "id", f"{where}.id")
    if kind == "item_reference":
        return _referred(item_id, where, find)
    if item_id == "":
        raise wrong(f"{where}.id", "a non-empty string")
    status = text(value, "status", f"{where}.status")
    wire: dict[str, object] = {"id": item_id if item_id is not None else new_id(kind), "type": kind}
    match kind:
        case "message":
            wire |= _message(value, where)
        case "reasoning":
            wire |= _reasoning(value, where)
            if not wire["content"] and not wire["summary"]:
                return None
        case "function_call" | "custom_tool_call":
            if status not in (None, "completed"):
                message = f"{where}: a call that was not completed cannot be part of a history"
                raise refusal("invalid_tool_history", message, f"{where}.status")
            wire |= _call(value, kind, where)
        case _:
            wire |= {"call_id": _filled(value, "call_id", where), "output": _output(value, where)}
    return item_of({**wire, "status": "completed"})


def _check_members(value: Object, known: Sequence[str], where: str) -> None:
    for member, content in value.items():
        if content is not None and member != "type" and member not in known:
            param = f"{where}.{member}"
            raise refusal("unknown_parameter", f"{param} is not known", param)


def _referred(item_id: str | None, where: str, find: Find) -> Item:
    if not item_id:
        raise wrong(f"{where}.id", "a non-empty string")
    item = find(item_id)
    if item is None:
        raise ItemNotFound(item_id)
    return item


class ItemNotFound(RequestRejected):
    """A reference to an item that no stored response has."""

    http_status = 404
    code = "item_not_found"

    def __init__(self, item_id: str) -> None:
        super().__init__(f"Item '{item_id}' is not part of any stored response.", param="input")


def _filled(value: Object, member: str, where: str) -> str:
    found = text(value, member, f"{where}.{member}")
    if not found:
        raise wrong(f"{where}.{member}", "a non-empty string")
    return found


def _message(value: Object, where: str) -> dict[str, object]:
    role = text(value, "role", f"{where}.role")
    if role is None:
        raise wrong(f"{where}.role", "a string")
    if role not in _ROLES:
        raise refusal("unsupported_role", f"role '{role}' is not supported", f"{where}.role")
    text(value, "phase", f"{where}.phase")
    content = value.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text" if role == "assistant" else "input_text", "text": content}]
    if not isinstance(content, list):
        raise wrong(f"{where}.content", "a string or an array of parts")
    parts = [_part(part, role, f"{where}.content[{n}]") for n, part in enumerate(content)]
    return {"role": role, "content": parts}


def _part(part: object, role: str, where: str) -> Object:
    if not isinstance(part, dict):
        raise wrong(where, "an object")
    kind = text(part, "type", f"{where}.type")
    if kind is None:
        raise wrong(f"{where}.type", "a string")
    if role not in _PART_ROLES.get(kind, ()):
        code = _STRANGERS.get(kind, "modality_not_supported")
        raise refusal(code, f"{where}: a part of type '{kind}' is not supported in a {role} message", f"{where}.type")
    _check_members(part, _PART_MEMBERS[kind], where)
    check_breakpoint(part, where)
    if kind in ("input_image", "input_video"):
        return _picture(part, kind, where)
    member = "refusal" if kind == "refusal" else "text"
    said = text(part, member, f"{where}.{member}")
    if said is None:
        raise wrong(f"{where}.{member}", "a string")
    if kind != "output_text":
        return {"type": kind, member: said}
    if array(part, "annotations", f"{where}.annotations"):
        message = f"{where}.annotations must be empty"
        raise refusal("parameter_not_supported", message, f"{where}.annotations")
    array(part, "logprobs", f"{where}.logprobs")  # of an answer that comes back as history: no prompt has them
    return {"type": kind, "text": said, "annotations": [], "logprobs": []}


def _picture(part: Object, kind: str, where: str) -> Object:
    if part.get("file_id") is not None:
        raise refusal("file_inputs_not_supported", f"{where}: files are not supported", f"{where}.file_id")
    member = kind.removeprefix("input_") + "_url"
    url = text(part, member, f"{where}.{member}")
    if url is None:
        raise wrong(f"{where}.{member}", "a string")
    if not url.startswith(("http://", "https://", "data:")):
        raise refusal("invalid_media", f"{where}.{member} must be an http:, https: or data: URL", f"{where}.{member}")
    if text(part, "detail", f"{where}.detail") not in (None, "auto"):
        raise refusal("image_detail_not_supported", f"{where}.detail must be 'auto'", f"{where}.detail")
    return {"type": kind, member: url, "detail": "auto"}


def _reasoning(value: Object, where: str) -> dict[str, object]:
    text(value, "encrypted_content", f"{where}.encrypted_content")
    found: dict[str, object] = {}
    for member, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        parts = []
        for n, part in enumerate(array(value, member, f"{where}.{member}") or ()):
            place = f"{where}.{member}[{n}]"
            if not isinstance(part, dict) or part.get("type") != kind or not isinstance(part.get("text"), str):
                raise wrong(place, f"a part of type {kind} with a text")
            _check_members(part, ("text",), place)
            parts.append({"type": kind, "text": part["text"]})
        found[member] = parts
    return found


def _call(value: Object, kind: str, where: str) -> dict[str, object]:
    wire: dict[str, object] = {"call_id": _filled(value, "call_id", where), "name": _filled(value, "name", where)}
    namespace = text(value, "namespace", f"{where}.namespace")
    if namespace is not None:
        wire["namespace"] = namespace
    member = "arguments" if kind == "function_call" else "input"
    said = text(value, member, f"{where}.{member}")
    if said is None:
        raise wrong(f"{where}.{member}", "a string")
    if kind == "function_call" and arguments_of(said) is None:
        message = f"{where}.{member} must be a string that holds a JSON object"
        raise refusal("invalid_tool_history", message, f"{where}.{member}")
    return {**wire, member: said}


def arguments_of(said: str) -> Object | None:
    """The arguments of a call from their text, where nothing and ``null`` are none; None if they are no object."""
    try:
        value = orjson.loads(said) if said else None
    except orjson.JSONDecodeError:
        return None
    if value is None:
        return {}
    return value if isinstance(value, dict) else None


def _output(value: Object, where: str) -> str | list[Object]:
    output = value.get("output")
    if isinstance(output, str):
        return output
    if not isinstance(output, list) or not output:
        raise wrong(f"{where}.output", "a string or a non-empty array of parts")
    parts: list[Object] = []
    for n, part in enumerate(output):
        place = f"{where}.output[{n}]"
        if isinstance(part, dict) and part.get("type") not in ("input_text", "input_image", *_STRANGERS):
            message = f"{place}: a part of type '{part.get('type')}' is not supported in an output"
            raise refusal("modality_not_supported", message, f"{place}.type")
        parts.append(_part(part, "user", place))
    return parts


def redacted(wire: Object) -> Object:
    """The item without the addresses of its images."""
    member = "content" if wire["type"] == "message" else "output"
    parts = wire.get(member)
    if not isinstance(parts, list):
        return wire
    hidden = [{**part, "image_url": None} if part["type"] == "input_image" else part for part in parts]
    return {**wire, member: hidden}


def namespace_of(wire: Mapping[str, object]) -> str | None:
    """The namespace of a call."""
    namespace = wire.get("namespace")
    return namespace if isinstance(namespace, str) else None
