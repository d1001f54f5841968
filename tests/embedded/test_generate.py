"""Generated conversations: right by an independent reading of their text, reproducible, rendered as served."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from random import Random

import pytest

from ninfer.artifact.frontend import small_frontend
from ninfer.embedded.generate.arithmetic import is_held_out, sums
from ninfer.embedded.generate.conversation import Conversation
from ninfer.embedded.generate.documents import ANSWER, PROMPT, Renderer
from ninfer.embedded.generate.facts import draw_facts
from ninfer.embedded.generate.lookup import five_facts, lookup, prose_filler, records, text_with
from ninfer.embedded.generate.memory import follow_up
from ninfer.embedded.generate.mixture import Mixture
from ninfer.embedded.generate.objects import json_object
from ninfer.embedded.generate.tasks import TASKS, held_out_cases
from ninfer.embedded.generate.tools import tool_call
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer

SEEDS = range(40)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    files = small_frontend()
    return Tokenizer(files["tokenizer.json"], files["tokenizer_config.json"], files["generation_config.json"])


@pytest.fixture(scope="module")
def renderer(tokenizer: Tokenizer) -> Renderer:
    return Renderer(ChatTemplate(small_frontend()["chat_template.jinja"].decode()), tokenizer)


def pairs(conversation: Conversation) -> list[tuple[str, str]]:
    """(question, answer) of consecutive user and assistant messages."""
    contents = [(m["role"], str(m["content"])) for m in conversation.messages]
    return [(q, a) for (role, q), (_, a) in pairwise(contents) if role == "user"]


@pytest.mark.parametrize("seed", SEEDS)
def test_sums_are_right(seed: int):
    for _, answer in pairs(sums(Random(seed), False, turns=10)):
        left, right = answer.split(" = ")
        a, sign, b = left.split(" ")
        assert int(right) == (int(a) + int(b) if sign == "+" else int(a) - int(b))


@pytest.mark.parametrize("held_out", [True, False])
def test_summands_of_training_are_never_those_of_the_examination(held_out: bool):
    seen = 0
    for seed in SEEDS:
        for _, answer in pairs(sums(Random(seed), False, turns=8, held_out=held_out)):
            if found := re.fullmatch(r"(\d+) \+ (\d+) = \d+", answer):
                assert is_held_out(int(found[1]), int(found[2])) == held_out
                seen += 1
    assert seen > 100


@pytest.mark.parametrize("seed", SEEDS)
def test_every_answer_of_a_lookup_stands_in_the_text(seed: int):
    rng = Random(seed)
    conversation = lookup(rng, False, tokens=400, facts=8, questions=6, absent=0.3)
    text = str(conversation.messages[0]["content"])
    for question, answer in pairs(conversation):
        if answer == "I have read the text.":
            continue
        found = re.fullmatch(r"The (.*) of (\w+) is (.*)\.", answer)
        if found is None:
            kind, who = re.fullmatch(r"I don't know\. .* what the (.*) of (\w+) is\.", answer).groups()  # type: ignore[union-attr]
            assert f"The {kind} of {who} is" not in text
            assert f"{who}'s {kind} is" not in text
            continue
        kind, who, value = found.groups()
        assert kind in question
        assert who in question
        ways = (f"{kind} of {who} is {value}.", f"{who}'s {kind} is {value}.", f"for {who}, the {kind} is {value}.")
        assert any(way in text for way in ways)


def test_facts_have_one_value_each():
    for seed in SEEDS:
        facts = draw_facts(Random(seed), 30)
        assert len({(fact.who, fact.attribute) for fact in facts}) == len(facts)


@pytest.mark.parametrize("seed", SEEDS)
def test_five_questions_get_five_answers(seed: int):
    question, answer = pairs(five_facts(Random(seed), False, tokens=300, facts=9))[-1]
    assert re.findall(r"^(\d)\. ", answer, re.M) == list("12345")
    assert re.findall(r"^(\d)\. ", question, re.M)[-5:] == list("12345")


@pytest.mark.parametrize("seed", SEEDS)
def test_records_are_read_from_their_lines(seed: int):
    conversation = records(Random(seed), False, entries=20, questions=5)
    lines = str(conversation.messages[0]["content"]).split("\n")
    assert all(answer in lines for _, answer in pairs(conversation))


@pytest.mark.parametrize("seed", SEEDS)
def test_objects_hold_what_the_sentence_says(seed: int):
    for request, answer in pairs(json_object(Random(seed), False, turns=2)):
        value = json.loads(answer)
        assert 3 <= len(value) <= 6
        for key, held in value.items():
            assert str(held) in request
            assert key in request


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_fit_their_declaration(seed: int):
    conversation = tool_call(Random(seed), False)
    assert conversation.tools is not None
    declared = {tool["function"]["name"]: tool["function"] for tool in conversation.tools}  # type: ignore[index]
    assert len(declared) == 4
    call = conversation.messages[-1]["tool_calls"][0]["function"]  # type: ignore[index]
    assert list(call["arguments"]) == declared[call["name"]]["parameters"]["required"]
    request = str(conversation.messages[-2]["content"])
    assert all(str(value) in request for value in call["arguments"].values())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follow_up_asks_for_what_was_said_before_the_last_turn(seed: int):
    conversation = follow_up(Random(seed), False)
    assert len(conversation.messages) == 6
    value = re.fullmatch(r"(?:Your .* is|The result was) (.*)\.", str(conversation.messages[-1]["content"]))
    assert value is not None
    assert value[1] in str(conversation.messages[1]["content"])


def test_text_has_the_length_that_was_asked_for():
    text = text_with(Random(1), draw_facts(Random(1), 5), 1000, prose_filler)
    assert 4000 < len(text) < 4500


def test_the_same_seed_gives_the_same_cases_and_another_seed_gives_others():
    for task in TASKS:
        assert held_out_cases(task, 3, 2) == held_out_cases(task, 3, 2)
        assert held_out_cases(task, 3, 2) != held_out_cases(task, 4, 2)


@pytest.mark.parametrize("thinking", [False, True])
def test_a_document_is_the_prompt_followed_by_the_answer(renderer: Renderer, tokenizer: Tokenizer, thinking: bool):
    for seed in range(10):
        for conversation in (
            tool_call(Random(seed), thinking, turns=2, follow=True),
            lookup(Random(seed), thinking, tokens=100, facts=3, questions=2, absent=0.5),
        ):
            document = renderer.conversation(conversation)
            prompt = tokenizer.encode_prompt(renderer.prompt(conversation))
            ids = document.ids.tolist()
            assert ids[: len(prompt)] == prompt
            begin, end = renderer.answers(ids)[-1]
            assert begin == len(prompt)
            assert tokenizer.token_bytes(ids[end - 1]) == b"<|im_end|>"
            written = tokenizer.decode(ids[begin : end - 1])
            assert written.endswith(str(conversation.messages[-1]["content"]))
            assert ("</think>" in written) == thinking
            assert (document.weights[begin:end] == ANSWER).all()
            assert document.weights[0] == PROMPT


def test_kinds_keep_their_shares_of_tokens(renderer: Renderer):
    mixture = Mixture(Random(0), 500, prose_filler)
    totals: dict[str, int] = {}
    for _ in range(600):
        kind, conversation = mixture.draw()
        size = len(renderer.conversation(conversation).ids)
        mixture.count(kind, size)
        totals[kind] = totals.get(kind, 0) + size
    whole = sum(totals.values())
    assert abs(totals["sums"] / whole - 0.10) < 0.03
    assert abs(totals["lookup"] / whole - 0.40) < 0.05
