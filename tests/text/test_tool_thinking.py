"""Calls in thinking that was never closed."""

from __future__ import annotations

import pytest

from ninfer.text.output import OutputParser, ReasoningDelta, ToolUse
from ninfer.text.tool_values import DeclaredTools
from tests.text.calling import TOOLS, call, read

READ = call("read", path="a.txt")
CALLED = ("read", '{"path": "a.txt"}', True)


@pytest.mark.parametrize(
    "thought",
    [
        "I know what to read next.",
        "Not `<tool_call>` alone.",
        "A <function=read> is declared, <function=nope> is not, <tool box> is nothing.",
        "<function=read>",
        "",
    ],
)
@pytest.mark.parametrize("calls", [READ, f"{READ}\n{call('list_jobs')}", f"<function_calls>{READ}</function_calls>"])
def test_calls_at_the_end_become_the_turn(thought: str, calls: str) -> None:
    result = read(f"{thought}\n\n{calls}\n", opens_think=True)
    assert (result.reasoning, result.content, result.calls[0]) == (thought, "", CALLED)
    assert result.seen is not None
    assert result.seen.recovered_from_reasoning
    assert result.seen.structured_call_count == len(result.calls) == calls.count("<function=")
    assert result.tokens[1] == result.tokens[0]


def test_a_bare_call_becomes_the_turn() -> None:
    bare = READ.removeprefix("<tool_call>\n")
    result = read(f"As <function=read>\n<function=write> say:\n{bare}", opens_think=True)
    assert result.calls == (CALLED,)
    assert result.reasoning == "As <function=read>\n<function=write> say:"


@pytest.mark.parametrize(
    "rest",
    [
        f"{READ}\nand so on",
        f"{READ}\nand then\n{READ}",
        f"{READ}\n{call('nope')}",
        f"{call('nope')}\n{READ}",
        f"<tool_call> as a word, then\n{READ}",
        READ[:-30],
        "<tool_call>\n<function=read>\n",
        "<tool_call>\n<func",
        "<tool_call>",
        f"{READ}\n<tool_call>",
        f"{READ} <",
        "<function=read> said",
        "<function=read>",
        "`a <tool_call>",
    ],
)
def test_anything_else_is_thinking(rest: str) -> None:
    result = read(f"Hm.\n{rest}", opens_think=True)
    assert (result.reasoning, result.content, result.calls) == (f"Hm.\n{rest.rstrip()}", "", ())
    assert result.seen is not None
    assert not result.seen.recovered_from_reasoning


def test_not_when_the_turn_was_ended_by_something_else() -> None:
    assert read(f"Hm.\n{READ}", opens_think=True, own_stop=False).calls == ()
    assert read(f"Hm.\n{READ}STOP", opens_think=True, stops=["STOP"]).calls == ()
    assert read(f"Hm.\n{READ}", opens_think=True, tools=()).reasoning == f"Hm.\n{READ}"


@pytest.mark.parametrize("behind", ["", "\n\n", "\n\nAn answer.", f"\n{READ}"])
def test_not_when_thinking_was_closed(behind: str) -> None:
    result = read(f"Hm.\n{READ}\n</think>{behind}", opens_think=True)
    assert result.reasoning == f"Hm.\n{READ}"
    assert result.content == ("An answer." if "answer" in behind else "")
    assert result.calls == ((CALLED,) if READ in behind else ())


def test_not_in_thinking_that_was_opened_again() -> None:
    result = read(f"Hm.</think>\n<think>{READ}", opens_think=True)
    assert (result.reasoning, result.calls) == (f"Hm.\n\n{READ}", ())
    result = read(f"{READ}</think>\n<think>", opens_think=True)
    assert (result.reasoning, result.calls) == (READ, ())


def test_a_tolerant_server_does_not_mend_calls_in_thinking() -> None:
    """Undeclared tools and cut blocks stay thinking; only whole calls to declared tools are sure enough."""
    for rest in (call("nope"), READ.removesuffix("\n</function>\n</tool_call>") + " x"):
        assert read(rest, opens_think=True, tolerant=True).calls == ()


def test_thinking_flows_up_to_an_opener_and_again_once_it_is_none() -> None:
    use = ToolUse(DeclaredTools(TOOLS), lambda: "id")
    parser = OutputParser(lambda token_id: b"", stop_ids=frozenset(), opens_think=True, tool_use=use)
    assert parser.feed_bytes([b"I see"]) == [ReasoningDelta("I see")]
    assert parser.feed_bytes([b". <tool_call>\n"]) == [ReasoningDelta(".")]
    assert parser.feed_bytes([b"<function"]) == []
    assert parser.feed_bytes([b" or"]) == []
    assert parser.feed_bytes([b" what\n", b"?"]) == [ReasoningDelta(" <tool_call>\n<function or what\n?")]
    assert parser.feed_bytes([b" <tool_call>"]) == [ReasoningDelta(" <tool_call>")]


def test_held_thinking_goes_out_when_thinking_is_closed() -> None:
    use = ToolUse(DeclaredTools(TOOLS), lambda: "id")
    parser = OutputParser(lambda token_id: b"", stop_ids=frozenset(), opens_think=True, tool_use=use)
    assert parser.feed_bytes([f"So {READ}".encode()]) == [ReasoningDelta("So")]
    assert parser.feed_bytes([b"</think>"]) == [ReasoningDelta(f" {READ}")]
