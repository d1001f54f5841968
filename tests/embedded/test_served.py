"""The embedded model behind the real server, asked by the OpenAI SDK; greedy answers are exact."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import openai
import pytest

from ninfer.artifact.binder import bind
from ninfer.artifact.container import Artifact
from ninfer.config import EngineSettings, Settings
from ninfer.embedded import ARTIFACT
from ninfer.embedded.generate.arithmetic import is_held_out
from ninfer.embedded.generate.lookup import prose_filler
from ninfer.engine.layouts import PlainLayout
from ninfer.engine.plan import plan_memory
from ninfer.errors import StartupError
from ninfer.served import open_served
from tests.support.process import Process

MODEL = "ninfer-embedded"
TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "description": text} for key, text in parameters.items()},
                "required": list(parameters),
            },
        },
    }
    for name, description, parameters in (
        ("get_weather", "Get the weather.", {"city": "Name of the city", "day": "Day of the week"}),
        ("send_message", "Send the message.", {"recipient": "Name of the person"}),
        ("open_file", "Open the file.", {"path": "Path of the file"}),
        ("get_flight", "Get the flight.", {"destination": "City of arrival", "date": "Day of travel"}),
    )
)


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    process = Process()
    process.wait_for("ready: ")
    with openai.OpenAI(base_url=process.url, api_key="unused", max_retries=0) as sdk:
        yield sdk
    process.process.terminate()
    assert process.end() == 0


def ask(client: openai.OpenAI, *contents: str, thinking: bool = False, **more: Any) -> Any:
    """The last answer of a conversation whose user turns are `contents`."""
    messages: list[Any] = []
    for content in contents:
        messages.append({"role": "user", "content": content})
        switch = {"enable_thinking": thinking}
        done = client.chat.completions.create(
            model=MODEL, messages=messages, temperature=0, max_tokens=200, extra_body=switch, **more
        )
        assert done.choices[0].finish_reason in ("stop", "tool_calls")
        messages.append({"role": "assistant", "content": done.choices[0].message.content})
    return done


def text(done: Any) -> str:
    return str(done.choices[0].message.content)


def test_sums_that_training_never_held(client: openai.OpenAI) -> None:
    for a, b in ((615, 204), (703, 324), (876, 617)):
        assert is_held_out(a, b)
        assert text(ask(client, f"What is {a} + {b}?")) == f"{a} + {b} = {a + b}"


def test_thinking_comes_apart_from_the_answer(client: openai.OpenAI) -> None:
    message = ask(client, "What is 58 + 67?", thinking=True).choices[0].message
    assert message.content == "58 + 67 = 125"
    assert message.reasoning_content.split("\n")[0] == "8 + 7 + 0 = 15, digit 5, carry 1"


def test_a_fact_from_a_thousand_tokens(client: openai.OpenAI) -> None:
    sentences = prose_filler(Random("a thousand tokens"), 4200)
    middle = len(sentences) // 2
    lines = [*sentences[:middle], "The access code of Maria Lopez is 48213.", *sentences[middle:]]
    question = f"Here is a text.\n\n{' '.join(lines)}\n\nWhat is the access code of Maria Lopez?"
    done = ask(client, question)
    assert 900 < done.usage.prompt_tokens < 1200
    assert text(done) == "The access code of Maria Lopez is 48213."


def test_json_from_a_sentence(client: openai.OpenAI) -> None:
    sentence = "Maria is 34 years old, lives in Berlin and likes tennis."
    done = ask(client, f"Extract name, age and city as JSON. {sentence}")
    assert text(done) == '{"name": "Maria", "age": 34, "city": "Berlin"}'


def test_a_follow_up_to_the_turn_before_last(client: openai.OpenAI) -> None:
    turns = ("My favourite food is soup.", "What is the capital of Italy?", "What is my favourite food?")
    assert text(ask(client, *turns)) == "Your favourite food is soup."


def test_a_tool_call_in_the_syntax_of_the_family(client: openai.OpenAI) -> None:
    done = ask(client, "Can you get the weather in Oslo on Monday?", tools=TOOLS)
    (choice,) = done.choices
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Oslo", "day": "Monday"}')
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)


def test_its_own_sampling_is_the_preset() -> None:
    settings = Settings(artifact=ARTIFACT, default_artifact=True)
    with Artifact.open(ARTIFACT) as artifact:
        model = open_served(artifact, settings).model
        thinking, plain = model.presets.thinking, model.presets.non_thinking
    assert model.public_id == MODEL
    assert thinking == plain
    assert (plain.temperature, plain.top_p, plain.top_k, plain.presence_penalty) == (0.2, 0.9, 20, 0.0)


def test_it_serves_as_many_tokens_as_it_says() -> None:
    with Artifact.open(ARTIFACT) as artifact:
        text = bind(artifact).text
    for context in (8192, 32768):
        settings = EngineSettings(max_context_tokens=context, kv_capacity_tokens=context)
        assert plan_memory(PlainLayout(text), settings, 1 << 40).max_context_tokens == context
    with pytest.raises(StartupError, match="the model allows 1 to 32768"):
        plan_memory(PlainLayout(text), EngineSettings(max_context_tokens=32769, kv_capacity_tokens=32832), 1 << 40)
