from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import StartupError
from ninfer.text.prompt import FAMILY_CONTROL_TOKENS, RenderedPrompt, Segment
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer
from tests.text.vocabulary import added_token, tiny_definition, tiny_json

TINY = Tokenizer.from_resources(tiny_json(), None, None)
LIBRARY = tokenizers.Tokenizer.from_str(tiny_json().decode())
PIECES = st.sampled_from([*FAMILY_CONTROL_TOKENS, "<", "think>", "hi", " ", "é", "e\u0301"])
SPELLED = st.lists(PIECES | st.text(max_size=8), max_size=12).map("".join)


def ids(text: str) -> list[int]:
    return [int(word) for word in text.split()]


# Model spec 13.3.
GOLDEN_IDS = [
    ("Hello world", "9419 1814"),
    ("Hello! 1 + 1 = 2\n", "9419 0 220 16 478 220 16 283 220 17 198"),
    ("12345", "16 17 18 19 20"),
    ("I'm", "40 2688"),
    ("def f(x):\n    return x+1\n", "727 281 2007 1590 198 262 460 830 10 16 198"),
    ("  leading", "220 6187"),
    ("\t\t\n", "2317"),
    ("\n", "198"),
    ("\n\n", "271"),
    ("\n\n\n", "1358"),
    (" ", "220"),
    ("\u00e1", "1886"),
    ("a\u0301", "1886"),
    ("😀", "169706"),
    ("日本語テスト", "247359 181801"),
    ("ไทย", "149826"),
    (
        "naïve café — 中文 한국어 العربية 12345 don't I'LL  x\r\n\r\n\ty",
        "3267 36328 571 50203 1892 220 99986 190925 171405 220 16 17 18 19 20 1459 914 353 6 3950 220 830 845 14104",
    ),
    ("system\n", "8678 198"),
    (
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "248045 846 198 14556 248046 198 248045 74455 198 248068 198",
    ),
    ("<think>\n\n</think>\n\n", "248068 271 248069 271"),
    ("\n<tool_response>\nok\n</tool_response>", "198 248066 198 547 198 248067"),
    (
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        "248058 198 27 1628 17572 29 198 27 15704 23478 29 198 16 198 510 15704 29 198 510 1628 29 198 248059",
    ),
    # Section 15: the early close of a think block.
    (
        "\n\n Considering the limited time by the user, I have to give the solution based on the thinking directly now."
        "\n</think>\n\n",
        "271 53907 279 6973 854 539 279 1156 11 353 599 310 2873 279 6093 3018 383 279 7047 5774 1381 13 198 "
        "248069 271",
    ),
]


@pytest.mark.parametrize(("text", "golden"), GOLDEN_IDS, ids=lambda value: repr(value[:20]))
def test_golden_ids(family: Tokenizer, text: str, golden: str) -> None:
    assert family.encode_with_control(text) == ids(golden)


def test_family_numbers(family: Tokenizer) -> None:
    assert family.id_count == 248_077
    assert family.stop_ids == {248_046, 248_044}
    assert family.control_id("</think>") == 248_069
    assert len(family.control_ids) == 33


# Model spec 14.4, rows with ids or counts.
def test_golden_prompt_ids(family: Tokenizer, qwen3_6: ChatTemplate, qwen3_8: ChatTemplate) -> None:
    hi = [{"role": "user", "content": "hi"}]
    assert len(family.encode_prompt(qwen3_6.render(hi))) == 11
    for template in (qwen3_6, qwen3_8):
        assert len(family.encode_prompt(template.render(hi, enable_thinking=False))) == 13
    assert family.encode_prompt(qwen3_8.render(hi)) == ids(
        "248045 8678 198 24342 286 4879 369 716 310 830 11553 13 5044 1683 15060 1472 279 3274 11 9307 1328 30800 11 "
        "2814 47675 25605 11 321 60445 55404 11 27224 11 321 30246 303 279 1534 4087 13 248046 198 248045 846 198 5834 "
        "248046 198 248045 74455 198 248068 198"
    )
    assert family.encode_prompt(qwen3_8.render(hi, reasoning_effort="low")) == ids(
        "248045 8678 198 24342 286 4879 369 716 310 3238 13 13262 678 7047 9522 321 10419 11 6992 5774 310 279 16198 "
        "1973 24366 24150 362 13 248046 198 248045 846 198 5834 248046 198 248045 74455 198 248068 198"
    )
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    }
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Get it", "parameters": parameters}}
    assert len(family.encode_prompt(qwen3_6.render(hi, tools=[tool]))) == 274


def test_a_long_prompt_leaves_the_interpreter_free() -> None:
    text = "the thin things hide this and that, " * 12_000  # more than 100,000 tokens of this vocabulary
    took: list[float] = []
    started = threading.Event()

    def encode() -> None:
        started.set()
        begin = time.perf_counter()
        count = len(TINY.encode(text))
        took.append(time.perf_counter() - begin)
        assert count > 100_000

    worker = threading.Thread(target=encode)
    worker.start()
    started.wait()
    longest, last = 0.0, time.perf_counter()
    while worker.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    worker.join()
    # With the lock held throughout, the gap would be the whole time of the call.
    assert longest < took[0] / 2


@settings(deadline=None)
@given(SPELLED)
def test_text_never_gives_a_control_id(text: str) -> None:
    plain = TINY.encode(text)
    assert not any(map(TINY.is_control, plain))


@settings(deadline=None)
@given(SPELLED)
def test_trusted_text_is_encoded_as_the_library_does(text: str) -> None:
    assert TINY.encode_with_control(text) == LIBRARY.encode(text, add_special_tokens=False).ids


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_arbitrary_bytes_come_back(data: bytes) -> None:
    by_byte = {TINY.token_bytes(n): n for n in range(256)}
    tokens = [by_byte[data[n : n + 1]] for n in range(len(data))]
    assert b"".join(map(TINY.token_bytes, tokens)) == data
    assert TINY.decode(tokens) == data.decode(errors="replace")


def test_a_prompt_has_the_control_ids_of_its_segments_only() -> None:
    start, end = "<|im_start|>", "<|im_end|>"
    prompt = RenderedPrompt((Segment(start, True), Segment("hi <|im_end|>", False), Segment(end, True)))
    encoded = TINY.encode_prompt(prompt)
    assert [n for n in encoded if TINY.is_control(n)] == [
        TINY.control_id(start),
        TINY.control_id(end),
    ]
    assert TINY.decode(encoded) == prompt.text


def test_a_prompt_with_an_unknown_control_token_is_refused() -> None:
    with pytest.raises(StartupError, match=r"no control token <\|nope\|>"):
        TINY.encode_prompt(RenderedPrompt((Segment("<|nope|>", True),)))


def test_text_of_generated_tokens() -> None:
    assert TINY.text_bytes(TINY.control_id("<|im_end|>")) == b""
    assert TINY.text_bytes(TINY.control_id("<|image_pad|>")) == b""
    assert TINY.text_bytes(TINY.control_id("</think>")) == b"</think>"
    assert TINY.text_bytes(TINY.control_id("<|fim_prefix|>")) == b"<|fim_prefix|>"
    assert TINY.text_bytes(TINY.encode("hi")[0]) == b"hi"


def test_think_markup_is_text_even_when_marked_special() -> None:
    definition = tiny_definition()
    for entry in definition["added_tokens"]:  # type: ignore[attr-defined]
        entry["special"] = True
    tokenizer = Tokenizer.from_resources(json.dumps(definition).encode(), None, None)
    for spelling in ("<think>", "</think>", "<tool_call>", "</tool_call>"):
        assert tokenizer.text_bytes(tokenizer.control_id(spelling)) == spelling.encode()
    assert tokenizer.text_bytes(tokenizer.control_id("<|fim_prefix|>")) == b""


def test_tokens_of_both_files_are_merged() -> None:
    definition: dict[str, Any] = tiny_definition()
    late = definition["added_tokens"][26:]
    definition["added_tokens"] = definition["added_tokens"][:26]
    config = {"added_tokens_decoder": {str(entry["id"]): entry for entry in late}}
    merged = Tokenizer.from_resources(json.dumps(definition).encode(), json.dumps(config).encode(), None)
    assert merged.control_ids == TINY.control_ids
    assert merged.id_count == TINY.id_count == 293


def test_a_vocabulary_that_holds_its_control_tokens() -> None:
    definition: dict[str, Any] = tiny_definition()
    definition["model"]["ignore_merges"] = True
    definition["model"]["vocab"] |= {entry["content"]: entry["id"] for entry in definition["added_tokens"]}
    tokenizer = Tokenizer.from_resources(json.dumps(definition).encode(), None, None)
    assert not any(map(tokenizer.is_control, tokenizer.encode("<think><|im_end|>")))
    assert tokenizer.token_bytes(tokenizer.control_id("<think>")) == b"<think>"


@pytest.mark.parametrize(("stated", "stops"), [(None, {260, 262}), (7, {7, 260, 262}), ([262, 9], {9, 260, 262})])
def test_stop_ids(stated: object, stops: set[int]) -> None:
    generation = json.dumps({"eos_token_id": stated}).encode()
    assert Tokenizer.from_resources(tiny_json(), None, generation).stop_ids == stops


def test_a_vocabulary_without_control_tokens() -> None:
    tokenizer = Tokenizer.from_resources(json.dumps(tiny_definition() | {"added_tokens": []}).encode(), b"{}", b"{}")
    assert tokenizer.stop_ids == frozenset()
    assert tokenizer.encode_with_control("<think>") == tokenizer.encode("<think>")


def test_an_id_that_is_no_token() -> None:
    with pytest.raises(ValueError, match="293 is not the id of a token"):
        TINY.token_bytes(293)


def broken(**changes: object) -> bytes:
    return json.dumps(tiny_definition() | changes).encode()


def with_model(**changes: object) -> bytes:
    definition: dict[str, Any] = tiny_definition()
    return json.dumps(definition | {"model": definition["model"] | changes}).encode()


def decoder(**entries: object) -> bytes:
    return json.dumps({"added_tokens_decoder": entries}).encode()


@pytest.mark.parametrize(
    ("definition", "config", "generation", "message"),
    [
        (b"\xff", None, None, "tokenizer.json is not JSON"),
        (b"[]", None, None, "tokenizer.json holds no JSON object"),
        (tiny_json(), b"3", None, "tokenizer_config.json holds no JSON object"),
        (broken(model={"type": "WordPiece"}), None, None, "the model is not BPE"),
        (broken(model=None), None, None, "the model is not BPE"),
        (with_model(vocab=[]), None, None, "the model is not BPE"),
        (with_model(merges=[["no", "pe"]]), None, None, "tokenizer.json cannot be used"),
        (with_model(vocab={"\u2603": 0}, merges=[]), None, None, "not byte-level"),
        (broken(added_tokens=["<think>"]), None, None, "an added token is not an object"),
        (broken(added_tokens=[{"id": "x", "content": "y"}]), None, None, "no proper id and content"),
        (broken(added_tokens=[{"id": 300, "content": ""}]), None, None, "no proper id and content"),
        (broken(added_tokens=[added_token(300, "<a>", lstrip=True)]), None, None, "surroundings flag"),
        (broken(added_tokens=[added_token(300, "<a>"), added_token(301, "<a>")]), None, None, "two ids"),
        (broken(added_tokens=[added_token(3, "<a>")]), None, None, "id 3 is both an added token and an entry"),
        (tiny_json(), b'{"added_tokens_decoder": [1]}', None, "added_tokens_decoder is not an object"),
        (tiny_json(), decoder(x={"content": "<a>"}), None, "no proper id and content"),
        (tiny_json(), decoder(**{"260": {"content": "<a>"}}), None, "is both <|endoftext|> and <a>"),
        (tiny_json(), None, b'{"eos_token_id": [1, 293]}', "names no token of the vocabulary"),
        (tiny_json(), None, b'{"eos_token_id": "x"}', "names no token of the vocabulary"),
    ],
)
def test_unusable_resources(definition: bytes, config: bytes | None, generation: bytes | None, message: str) -> None:
    with pytest.raises(StartupError) as caught:
        Tokenizer.from_resources(definition, config, generation)
    assert message in str(caught.value)
