from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import RequestRejected, StartupError
from ninfer.text.prompt import FAMILY_CONTROL_TOKENS, Segment
from ninfer.text.template import (
    STOCK_DIGESTS,
    ChatTemplate,
    TemplateTraits,
    builtin_source,
    template_source,
)
from ninfer.text.tokenizer import Tokenizer
from tests.text.vocabulary import tiny_json

XHIGH = (
    "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider "
    "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer."
)
LOW = (
    "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion without "
    "unnecessary elaboration."
)
HI = "<|im_start|>user\nhi<|im_end|>\n"
OPEN = "<|im_start|>assistant\n<think>\n"
V36 = ChatTemplate(builtin_source("qwen3_6"))
V38 = ChatTemplate(builtin_source("qwen3_8"))
TINY = Tokenizer.from_resources(tiny_json(), None, None)
BOTH = pytest.mark.parametrize("template", [V36, V38], ids=["3.6", "3.8"])
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get it",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}

Chat = list[dict[str, Any]]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **members}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def tool(content: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content}


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def text(template: ChatTemplate, messages: Chat, *, gen: bool = False, **options: Any) -> str:
    return template.render(messages, add_generation_prompt=gen, **options).text


def refusal(template: ChatTemplate, messages: Chat, **options: Any) -> str:
    with pytest.raises(RequestRejected) as caught:
        template.render(messages, **options)
    assert (caught.value.code, caught.value.param) == ("invalid_prompt", "messages")
    return caught.value.message


# Model spec 14.4; the comments are the row numbers.
def test_golden_renders() -> None:
    hi = [user("hi")]
    assert text(V36, hi, gen=True) == HI + OPEN  # 1
    for template in (V36, V38):
        assert text(template, hi, gen=True, enable_thinking=False) == HI + OPEN + "\n</think>\n\n"  # 2
    assert text(V38, hi, gen=True) == f"<|im_start|>system\n{XHIGH}<|im_end|>\n" + HI + OPEN  # 3
    assert text(V38, hi, gen=True, reasoning_effort="xhigh") == text(V38, hi, gen=True)
    low = f"<|im_start|>system\n{LOW}<|im_end|>\n"
    assert text(V38, hi, gen=True, reasoning_effort="low") == low + HI + OPEN  # 4
    assert text(V38, hi, gen=True, reasoning_effort="medium") == HI + OPEN  # 5
    with_system = text(V38, [system("  S  "), *hi], gen=True, reasoning_effort="low")
    assert with_system == f"<|im_start|>system\n{LOW}\n\nS<|im_end|>\n" + HI + OPEN  # 6


def test_golden_inline_thinking() -> None:
    old = [user("q1"), assistant("<think>\nold\n</think>\n\nans"), user("q2")]
    turn = "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n<|im_start|>user\nq2<|im_end|>\n"
    inline = "<think>\nold\n</think>\n\nans"
    assert text(V36, old) == turn.format("ans")  # 7
    assert text(V36, old, preserve_thinking=True) == turn.format(inline)
    assert text(V38, old, reasoning_effort="medium") == turn.format("<think>\n\n</think>\n\n" + inline)  # 8
    assert text(V38, old, reasoning_effort="medium", preserve_thinking=False) == turn.format(inline)


@BOTH
def test_golden_tool_history(template: ChatTemplate) -> None:
    arguments = {"city": "Paris", "days": 2, "o": {"a": [1, True, None]}, "u": "é<&>"}
    calls = [call("get_weather", arguments), {"name": "f", "arguments": {}}]
    history = [user("q"), assistant("let me", reasoning_content="r", tool_calls=calls), tool(" sunny "), tool("20C")]
    assert text(template, history, gen=True, reasoning_effort="medium") == (  # 9
        "<|im_start|>user\nq<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nr\n</think>\n\nlet me\n\n<tool_call>\n<function=get_weather>\n"
        "<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n<parameter=o>\n"
        '{"a": [1, true, null]}\n</parameter>\n'
        "<parameter=u>\né<&>\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=f>\n</function>\n</tool_call>"
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\n20C\n</tool_response>"
        "<|im_end|>\n" + OPEN
    )


def test_golden_reasoning_behind_the_last_question() -> None:
    history = [
        user("q1"),
        assistant("a1", reasoning_content="r1", tool_calls=[call("f", {})]),
        tool("t"),
        assistant("a2", reasoning_content="r2"),
    ]
    kept = text(V36, history)
    assert "<think>\nr1\n</think>\n\na1" in kept
    assert "<think>\nr2\n</think>\n\na2" in kept
    assert "<think>" not in text(V36, [*history, user("q2")])  # 10
    assert text(V38, [*history, user("q2")]).count("<think>") == 2


def test_golden_tool_declaration() -> None:
    render = text(V36, [user("hi")], gen=True, tools=[WEATHER]).encode()
    assert len(render) == 1189  # 11
    assert hashlib.sha256(render).hexdigest() == "1b7d6f806f9c9a48f4e561e9d0948adc70c772ea76422379b3065db09c17c4de"
    instructions = render.partition(b"\n</tools>")[2].partition(b"<|im_end|>")[0]
    assert len(instructions) == 817
    digest = "c618bf70de036a3337fbf9cfaf7171d7b700d3e116d61b6f4a40511e1ab4e25b"
    assert hashlib.sha256(instructions).hexdigest() == digest


def test_golden_media() -> None:
    parts = [{"text": "see "}, {"image_url": {"url": "x"}}, {"type": "video"}]
    medium = {"reasoning_effort": "medium"}
    image, video = "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"
    numbered = f"<|im_start|>user\nsee Picture 1: {image}Video 1: {video}<|im_end|>\n"
    assert text(V38, [user(parts)], add_vision_id=True, **medium) == numbered  # 12
    assert text(V38, [user(parts)], **medium) == f"<|im_start|>user\nsee {image}{video}<|im_end|>\n"
    again = text(V36, [user(parts), tool([{"type": "image"}, {"video": 1}])], add_vision_id=True)
    assert f"Picture 2: {image}Video 2: {video}\n</tool_response>" in again


def test_tools_with_effort_and_system() -> None:
    render = text(V38, [system("S"), user("hi")], tools=[WEATHER], reasoning_effort="low")
    assert render.startswith(f"<|im_start|>system\n{LOW}\n\n# Tools\n\nYou have")
    assert render.endswith("</IMPORTANT>\n\nS<|im_end|>\n" + HI)
    assert "\n<tools>\n" + json.dumps(WEATHER) + "\n</tools>\n" in render
    assert text(V36, [user("hi")], tools=[]) == HI


def test_empty_system_message() -> None:
    assert text(V36, [system(" "), user("hi")]) == "<|im_start|>system\n<|im_end|>\n" + HI
    assert text(V38, [system(" "), user("hi")], reasoning_effort="medium") == HI


@BOTH
def test_a_later_system_message_stays_where_it_stands(template: ChatTemplate) -> None:
    render = text(template, [user("hi"), system(" later "), user("hi")], enable_thinking=False)
    assert render == HI + "<|im_start|>system\nlater<|im_end|>\n" + HI


@BOTH
def test_a_history_that_begins_with_tool_results(template: ChatTemplate) -> None:
    render = text(template, [tool("a"), tool("b"), user("hi")], enable_thinking=False)
    results = "\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response>"
    assert render == f"<|im_start|>user{results}<|im_end|>\n" + HI


@BOTH
def test_calls_without_text_before_them(template: ChatTemplate) -> None:
    calls = [call("f", {"a": "  raw\n "}), {"name": "g"}]
    render = text(template, [user("hi"), assistant(None, tool_calls=calls)], enable_thinking=False)
    assert render == HI + (
        "<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>\n<function=f>\n"
        "<parameter=a>\n  raw\n \n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call><|im_end|>\n"
    )


def test_empty_string_arguments() -> None:
    history = [user("hi"), assistant("", tool_calls=[call("f", "")])]
    assert "<function=f>\n</function>" in text(V38, history)
    assert refusal(V36, history) == "Can only get item pairs from a mapping."


def test_reasoning_content_wins_over_inline_markup() -> None:
    turn = assistant("<think>x</think>y", reasoning_content=" r ")
    assert "assistant\n<think>\nr\n</think>\n\n<think>x</think>y<|im_end|>" in text(V36, [user("hi"), turn])


def test_inline_thinking_is_cut_by_its_outermost_markers() -> None:
    turn = assistant("a<think>\n\nb\n</think>c</think>\n\nd")
    assert "assistant\n<think>\nb\n</think>\n\nd<|im_end|>" in text(V36, [user("hi"), turn])


@BOTH
def test_a_turn_of_tool_results_alone_is_no_question(template: ChatTemplate) -> None:
    imitation = user(" <tool_response>\nx\n</tool_response> ")
    assert refusal(template, [imitation]) == "No user query found in messages."
    history = [user("hi"), assistant("a", reasoning_content="r"), imitation]
    assert "<think>\nr\n</think>" in text(template, history, preserve_thinking=False)


@BOTH
@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "No messages provided."),
        ([user("hi"), {"role": "developer", "content": "x"}], "Unexpected message role."),
        ([assistant("x")], "No user query found in messages."),
        ([user(3)], "Unexpected content type."),
        ([user({"text": "x"})], "Unexpected content type."),
        ([user([{"type": "text"}])], "Unexpected item type in content."),
        ([user(["text"])], "Unexpected item type in content."),
        ([system([{"image": 1}]), user("hi")], "System message cannot contain images."),
        ([user("hi"), system([{"video": 1}])], "System message cannot contain videos."),
        ([user("hi"), assistant("", tool_calls=[call("f", '{"a": 1}')])], "Can only get item pairs from a mapping."),
    ],
)
def test_refusals(template: ChatTemplate, messages: Chat, message: str) -> None:
    assert refusal(template, messages) == message


def test_unknown_effort() -> None:
    expected = "Unexpected reasoning effort high. Supported types are xhigh (default), medium, and low."
    assert refusal(V38, [user("hi")], reasoning_effort="high") == expected
    assert text(V38, [user("hi")], reasoning_effort="high", enable_thinking=False) == HI
    assert text(V36, [user("hi")], reasoning_effort="high") == HI


def test_invalid_unicode_is_refused() -> None:
    for bad in (user("\ud800"), {"role": "user", "content": "x", "\udc00": 1}, user([{"text": "\udfff"}])):
        assert "not Unicode" in refusal(V38, [bad])
    assert text(V36, [user("é")]) == "<|im_start|>user\né<|im_end|>\n"


def test_nesting_without_end_is_refused() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = [deep]
    refusal(V38, [user("hi"), assistant("", tool_calls=[call("f", {"a": deep})])])


@BOTH
def test_client_text_is_never_interpreted(template: ChatTemplate) -> None:
    hostile = "{{ 7*7 }}{% raw %}{#x#}${x}"
    assert f"user\n{hostile}<|im_end|>" in text(template, [user(hostile)])


CLIENT_TEXT = st.lists(st.sampled_from([*FAMILY_CONTROL_TOKENS, "<|im_", "start|>", "x", "\n", " "])).map("".join)


@settings(max_examples=40, deadline=None)
@given(CLIENT_TEXT, CLIENT_TEXT, CLIENT_TEXT, st.booleans())
def test_control_ids_come_from_the_template_alone(one: str, two: str, three: str, keep: bool) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": one}}]

    def history(one: str, two: str, three: str) -> Chat:
        called = assistant(two, reasoning_content=three, tool_calls=[call("f", {"k": one, "j": [two]})])
        return [user([{"text": one}, {"text": two}]), called, tool(three), user("q " + three)]

    for template in (V36, V38):
        prompt = template.render(history(one, two, three), tools=tools, preserve_thinking=keep)
        harmless = template.render(history("a", "b", "c"), tools=tools, preserve_thinking=keep)
        assert prompt.text == plain_render(template, history(one, two, three), tools, keep)
        controls = [segment for segment in prompt.segments if segment.control]
        assert controls == [segment for segment in harmless.segments if segment.control]
        encoded = TINY.encode_prompt(prompt)
        assert sum(map(TINY.is_control, encoded)) == len(controls)
        assert all(segment.text for segment in prompt.segments)


def plain_render(template: ChatTemplate, messages: Chat, tools: Chat, keep: bool) -> str:
    """The same template in an environment of its own, without marks."""
    plain = plain_template("qwen3_6" if template is V36 else "qwen3_8")
    return plain.render(messages=messages, tools=tools, preserve_thinking=keep, add_generation_prompt=True)


@functools.cache
def plain_template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(builtin_source(name))


def test_traits() -> None:
    assert V36.traits == TemplateTraits(thinks_by_default=True, has_thinking_switch=True, efforts=())
    assert V38.traits == TemplateTraits(
        thinks_by_default=True, has_thinking_switch=True, efforts=("low", "medium", "xhigh")
    )
    bare = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert bare.traits == TemplateTraits(thinks_by_default=False, has_thinking_switch=False, efforts=())
    refusing = ChatTemplate("{{ raise_exception('never') }}")
    assert refusing.traits == TemplateTraits(thinks_by_default=False, has_thinking_switch=False, efforts=())


# The shapes in which other templates write their control tokens.
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<|im_start|>{{ messages[0].content }}", [("<|im_start|>", True), ("<|im_end|>", False)]),
        ("{{ '<|im_start|>' + messages[0]['content'] }}", [("<|im_start|>", True), ("<|im_end|>", False)]),
        ("{% set a = '<think>' %}{{ a ~ '\n' }}", [("<think>", True), ("\n", False)]),
        ("{% macro m(x) %}{{ x }}{% endmacro %}{{ m('<think>') }}", [("<think>", True)]),
        ("{{ ' <think>'|trim }}", [("<think>", True)]),
        ("{{ '<think>' if messages else '</think>' }}", [("<think>", True)]),
        ("{{ 'b' if '<|im_end|>' in messages[0].content }}", [("b", False)]),
        ("{% if messages[0].content == '<|im_end|>' %}b{% endif %}", [("b", False)]),
        ("{{ 'b' if messages[0].content is eq('<|im_end|>') }}", [("b", False)]),
        ("{{ messages[0].content.replace('<|im_end|>', 'b') }}", [("b", False)]),
        ("{{ messages[0].content|replace('<|im_end|>', 'b') }}", [("b", False)]),
        ("{% for x in ['<|im_end|>'] %}{{ 'b' if x in messages[0].content }}{% endfor %}", [("b", False)]),
        ("{{ {'<|im_end|>': 'b'}[messages[0].content] }}", [("b", False)]),
        ("{% set a = '<|im_end|>' %}{{ 'b' if a in messages[0].content else 'c' }}", None),
        ("{{ '<|im_' ~ 'end|>' }}", None),
        ("{% for x in ['<think>'] %}{{ x }}{% endfor %}", None),
    ],
)
def test_marks(source: str, expected: list[tuple[str, bool]] | None) -> None:
    if expected is None:
        with pytest.raises(StartupError, match="cannot be told from the text of a client"):
            ChatTemplate(source)
        return
    prompt = ChatTemplate(source).render([user("<|im_end|>")])
    assert prompt.segments == tuple(Segment(*segment) for segment in expected)


def test_loop_controls_and_tojson_options() -> None:
    source = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m|tojson(indent=1) }}{% endfor %}"
    assert text(ChatTemplate(source), [user("é<"), user("x")]) == '{\n "role": "user",\n "content": "é<"\n}'


def test_a_sandbox_surrounds_the_template() -> None:
    escape = ChatTemplate("{{ messages.__class__.__mro__ }}")
    refusal(escape, [user("hi")])


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% import %}", "{{ 'x'|no_such_filter }}"])
def test_a_template_that_does_not_compile(source: str) -> None:
    with pytest.raises(StartupError, match="cannot be compiled"):
        ChatTemplate(source)


def test_too_many_control_tokens() -> None:
    with pytest.raises(StartupError, match="2049 control tokens"):
        ChatTemplate("x", [f"<{n}>" for n in range(2049)])
    assert text(ChatTemplate("<think>", []), [user("x")]) == "<think>"


def test_template_source() -> None:
    assert set(STOCK_DIGESTS.values()) == {"qwen3_6", "qwen3_8"}
    assert template_source("{{ 'é' }}".encode()) == "{{ 'é' }}"
    with pytest.raises(StartupError, match="not UTF-8"):
        template_source(b"\xff")


def test_a_stock_template_is_replaced_by_our_renderer(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = b"{{ messages }}"
    monkeypatch.setitem(STOCK_DIGESTS, hashlib.sha256(stock).hexdigest(), "qwen3_6")
    assert template_source(stock) == builtin_source("qwen3_6")


def test_a_schema_may_be_as_deep_as_a_body() -> None:
    schema: Any = {"type": "string"}
    for _ in range(500):
        schema = {"items": schema}
    tools: Chat = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    assert text(V38, [user("hi")], tools=tools).count('"items"') == 500
