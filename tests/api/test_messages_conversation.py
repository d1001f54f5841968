"""Messages of the Messages API: what reaches the template, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ninfer.api.conversation import Conversation
from ninfer.api.messages_conversation import parse_messages_conversation
from ninfer.errors import RequestRejected


def text(value: str, **members: object) -> dict[str, object]:
    return {"type": "text", "text": value, **members}


def use(call_id: str, name: str = "f", **members: object) -> dict[str, object]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {"a": 1}, **members}


def result(call_id: str, content: object = "r", **members: object) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **members}


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def assistant(content: object) -> dict[str, object]:
    return {"role": "assistant", "content": content}


def parsed(*messages: object, **fields: object) -> Conversation:
    return parse_messages_conversation({"messages": list(messages), **fields})


def turns(*messages: object, **fields: object) -> list[tuple[object, object]]:
    return [(turn["role"], turn["content"]) for turn in parsed(*messages, **fields).messages]


def refused(messages: Sequence[object], **fields: Any) -> tuple[str | None, str | None]:
    with pytest.raises(RequestRejected) as caught:
        parsed(*messages, **fields)
    return caught.value.code, caught.value.param


def test_strings_and_blocks_are_the_same() -> None:
    assert turns(user("Hi"), system="S") == turns(user([text("H"), text("i")]), system=[text("S")])
    assert turns(user("Hi"), system="S") == [("system", "S"), ("user", "Hi")]


def test_blocks_of_the_system_prompt_are_joined_by_a_newline() -> None:
    assert turns(user("q"), system=[text("a"), text("b")])[0] == ("system", "a\nb")
    assert turns(user("q"), system=[]) == turns(user("q"), system="") == [("user", "q")]


def test_the_clients_own_bookkeeping_is_left_out() -> None:
    header = text("x-anthropic-billing-header: cc_version=9.9; cch=0a1b2;")
    assert turns(user("q"), system=[header, text("b")])[0] == ("system", "b")
    assert turns(user("q"), system=[header]) == [("user", "q")]
    assert turns(user("q"), system=[text("b"), header])[0][1] == f"b\n{header['text']}"


def test_neighbours_of_the_same_role_are_one_turn() -> None:
    sent = [user("a"), user([text("b")]), assistant("c"), assistant([text("d")]), user("e")]
    assert turns(*sent) == [("user", "ab"), ("assistant", "cd"), ("user", "e")]
    assert parsed(*sent).message_count == 5


def test_system_messages_stand_where_they_were_sent_each_on_its_own() -> None:
    note = {"role": "system", "content": "n"}
    sent = [user("a"), note, {"role": "system", "content": [text("m")]}, user("b")]
    assert turns(*sent, system="S") == [("system", "S"), ("user", "a"), ("system", "n"), ("system", "m"), ("user", "b")]


def test_thinking_and_calls_of_the_assistant() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "redacted_thinking", "data": "AAAA"},
        text("look"),
        use("a"),
        use("b", input=None),
    ]
    said = parsed(
        user("q"), assistant(blocks), user([result("b", "2"), result("a", [text("1"), text("!")]), text("go")])
    )
    assert said.messages[1] == {
        "role": "assistant",
        "content": "look",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
            {"id": "b", "type": "function", "function": {"name": "f", "arguments": {}}},
        ],
    }
    # Results in the order of the calls, then what the user said.
    assert said.messages[2:] == (
        {"role": "tool", "content": "1!"},
        {"role": "tool", "content": "2"},
        {"role": "user", "content": "go"},
    )
    assert said.has_tool_history


def test_a_turn_of_results_alone_has_no_user_turn() -> None:
    sent = [user("q"), assistant([use("a")]), user([text(""), result("a", None, is_error=True), text("")])]
    assert turns(*sent)[2:] == [("tool", "[tool_error]\n")]


def test_a_failed_result_says_so_first() -> None:
    sent = [user("q"), assistant([use("a")]), user([result("a", "gone", is_error=True)])]
    assert turns(*sent)[2:] == [("tool", "[tool_error]\ngone")]


def test_results_before_any_assistant_turn_are_not_matched() -> None:
    assert turns(user([text("q"), result("x")])) == [("tool", "r"), ("user", "q")]


def test_a_last_assistant_message_is_a_prefill() -> None:
    said = parsed(user("q"), assistant("The"))
    assert (said.prefill, said.prefill_refusal) == ("The", None)
    assert len(said.messages) == 1
    assert parsed(user("q"), assistant([use("a")])).prefill_refusal
    assert parsed(user("q"), assistant([{"type": "thinking", "thinking": "x"}])).prefill_refusal


def test_pictures_are_counted() -> None:
    data = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    url = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    said = parsed(user([data, url]), assistant([use("a")]), user([result("a", [url])]))
    assert said.media_items == 3


@pytest.mark.parametrize(
    ("messages", "code", "param"),
    [
        ([], None, "messages"),
        (["x"], None, "messages[0]"),
        ([{"content": "x"}], None, "messages[0].role"),
        ([{"role": "tool", "content": "x"}], "unsupported_role", "messages[0].role"),
        ([user(None)], None, "messages[0].content"),
        ([user(1)], None, "messages[0].content"),
        ([user(["x"])], None, "messages[0].content[0]"),
        ([user([{}])], None, "messages[0].content[0].type"),
        ([user([{"type": "text"}])], None, "messages[0].content[0].text"),
        ([user([{"type": "document"}])], "modality_not_supported", "messages[0].content[0].type"),
        ([user([use("a")])], "modality_not_supported", "messages[0].content[0].type"),
        ([user("q"), assistant([result("a")])], "modality_not_supported", "messages[1].content[0].type"),
        ([user([text("q", cache_control=1)])], "parameter_not_supported", "messages[0].content[0].cache_control"),
        (
            [user([text("q", cache_control={"type": "x"})])],
            "invalid_value",
            "messages[0].content[0].cache_control.type",
        ),
        ([user([text("q", cache_control={})])], None, "messages[0].content[0].cache_control.type"),
        ([user([{"type": "image"}])], None, "messages[0].content[0].source"),
        ([user([{"type": "image", "source": {"type": "base64"}}])], None, "messages[0].content[0].source.media_type"),
        (
            [user([{"type": "image", "source": {"type": "url", "url": "file:///x"}}])],
            "invalid_media",
            "messages[0].content[0].source.url",
        ),
        (
            [user([{"type": "image", "source": {"type": "file", "file_id": "x"}}])],
            "modality_not_supported",
            "messages[0].content[0].source.type",
        ),
        ([user("q"), assistant([use("", "f")])], None, "messages[1].content[0]"),
        ([user("q"), assistant([use("a", input="{}")])], "invalid_tool_history", "messages[1].content[0].input"),
        ([user("q"), assistant([use("a"), use("a")])], "invalid_tool_history", "messages"),
        ([user("q"), assistant([use("a")]), user("no result")], "invalid_tool_history", "messages"),
        ([user("q"), assistant([use("a")]), user([result("b")])], "invalid_tool_history", "messages"),
        ([user("q"), assistant([use("a")]), user([result("a"), result("a")])], "invalid_tool_history", "messages"),
        ([user("q"), assistant("x"), user([result("a")])], "invalid_tool_history", "messages"),
        ([user([result("")])], None, "messages[0].content[0].tool_use_id"),
        (
            [user([result("a", [{"type": "tool_reference"}])])],
            "modality_not_supported",
            "messages[0].content[0].content[0].type",
        ),
        (
            [user("q"), assistant([use("a")]), user([text("first"), result("a")])],
            "invalid_tool_history",
            "messages[2].content[1]",
        ),
        (
            [user("q"), assistant([use("a")]), {"role": "system", "content": "s"}, user([result("a")])],
            "invalid_tool_history",
            "messages",
        ),
        ([assistant("x")], "invalid_prompt", "messages"),
        ([{"role": "system", "content": [use("a")]}], "modality_not_supported", "messages[0].content[0].type"),
    ],
)
def test_refusals(messages: list[object], code: str | None, param: str) -> None:
    assert refused(messages) == (code, param)


def test_a_system_prompt_at_fault() -> None:
    assert refused([user("q")], system=1) == (None, "system")
    assert refused([user("q")], system=[use("a")]) == ("modality_not_supported", "system[0].type")
