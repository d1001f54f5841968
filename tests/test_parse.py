"""``ninfer-parse``: what it reads, what it answers, and that a bad line spoils nothing."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest

from ninfer import parse

READ = {"type": "function", "function": {"name": "read", "parameters": {"properties": {"path": {"type": "string"}}}}}
CALL = "<tool_call>\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>"


def ask(*lines: object) -> list[dict[str, Any]]:
    source = io.StringIO("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    target = io.StringIO()
    assert parse.main([], source, target) == 0
    return [json.loads(line) for line in target.getvalue().splitlines()]


def test_a_call_behind_text() -> None:
    (answer,) = ask({"id": "c/whole", "raw": ["So.\n", CALL], "tools": [READ], "finish": "eos", "feed": "whole"})
    assert answer == {
        "id": "c/whole",
        "content": "So.",
        "reasoning": None,
        "tool_calls": [{"name": "read", "arguments": '{"path": "a.txt"}'}],
        "finish_reason": "tool_calls",
        "error": None,
        "deltas": [
            {"piece": 0, "content": "So."},
            {"piece": 1, "call": 0, "name": "read"},
            {"piece": 1, "call": 0, "arguments": '{"path": "a.txt"}'},
        ],
        "usage": {"completion_tokens": 2, "reasoning_tokens": 0},
    }


def test_the_end_of_the_turn_in_a_burst() -> None:
    (answer,) = ask(
        {"raw": [["I see", "\n</think>\n\nYes "], ["!", "<|im_end|>", "more"], ["x"]], "prompt_opens_think": True}
    )
    assert (answer["reasoning"], answer["content"], answer["finish_reason"]) == ("I see", "Yes !", "stop")
    assert answer["usage"] == {"completion_tokens": 4, "reasoning_tokens": 2}
    assert answer["deltas"][-1] == {"piece": 1, "content": "!"}


def test_tokens_as_bytes() -> None:
    (answer,) = ask({"tokens": ["446f6e6520", "f09f", "8e89"]})
    assert (answer["content"], answer["finish_reason"]) == ("Done 🎉", "stop")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"raw": ["a"], "finish": "length"}, "length"),
        ({"raw": ["a"], "finish": "stop_string"}, "stop"),
        ({"raw": ["aSTOPb"], "stop": ["STOP"], "finish": "length"}, "stop"),
        ({"raw": [["a", "<|im_end|>"]], "finish": "length"}, "stop"),
        ({"raw": [CALL[:60]], "tools": [READ], "finish": "eos"}, "length"),
        ({"raw": [CALL], "tools": [READ], "finish": "length"}, "tool_calls"),
        ({"raw": [CALL], "tools": [], "finish": "eos"}, "stop"),
    ],
)
def test_why_it_ended(fields: dict[str, Any], reason: str) -> None:
    assert ask(fields)[0]["finish_reason"] == reason


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{\n", "Expecting"),
        ("[]\n", "a case is a JSON object"),
        ("[" * 100_000 + "\n", "recursion"),
        ({"id": 1, "raw": "text"}, "raw must be"),
        ({"id": 1, "raw": [5]}, "raw must be"),
        ({"id": 1}, "raw must be"),
        ({"id": 1, "tokens": ["zz"]}, "in hex"),
        ({"id": 1, "raw": [], "tools": {"a": 1}}, "tools must be"),
        ({"id": 1, "raw": [], "stop": [""]}, "stop must be"),
        ({"id": 1, "raw": [], "stop": "x"}, "stop must be"),
        ({"id": 1, "raw": [], "finish": "never"}, "finish must be"),
    ],
)
def test_a_bad_line_gets_an_answer(line: object, said: str) -> None:
    bad, good = ask(line, "\n", {"id": "next", "raw": ["x"]})
    assert said in bad["error"]
    assert bad["id"] == (1 if isinstance(line, dict) else None)
    assert (good["id"], good["content"]) == ("next", "x")


def test_an_unpaired_surrogate_becomes_a_replacement_character() -> None:
    assert ask('{"raw": ["a\\ud83d"]}\n')[0]["content"].rstrip("\ufffd") == "a"


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ninfer.parse"], input='{"raw": ["hi"]}\n', capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["content"] == "hi"
