"""An agent's conversation: its least, and what a server reads of it."""

from __future__ import annotations

import json

import pytest

from ninfer.bench.cli import main
from ninfer.bench.trace import Counts, common

SHORTENED = ["--turns", "8", "--edit-at", "5", "--fork-at", "2", "--agents", "2", "--agent-turns", "2"]


def test_the_least_is_what_no_earlier_prompt_or_answer_begins_with() -> None:
    counts = Counts()
    for prompt, answer in (((1, 2, 3), (4,)), ((1, 2, 3, 4, 5), (6,)), ((1, 2, 9), ()), ((1, 2, 9), ())):
        counts.ask(prompt, answer)
    assert (counts.requests, counts.prompt_tokens, counts.least) == (4, 14, 3 + 1 + 1)


@pytest.mark.parametrize(("one", "other", "length"), [("", "ab", 0), ("ab", "abc", 2), ("axc", "abc", 1)])
def test_common_beginnings(one: str, other: str, length: int) -> None:
    assert common(one, other) == common(other, one) == length


# With the second there are pages for what one request is promised, and no more.
@pytest.mark.parametrize("limits", [(), ("--max-tokens", "0", "--", "--default-max-tokens", "auto")], ids=len)
def test_a_server_reads_little_more_than_the_least(limits: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--json", "--sizes", "ordinary", "--lanes", "1", "4", *SHORTENED, *limits]) == 0
    poor, trace = json.loads(capsys.readouterr().out)["traces"]
    assert trace["requests"] == poor["requests"] == 12
    assert trace["prompt_tokens"] > 5 * trace["least_tokens"]
    assert trace["ways"].keys() >= {"full_reset", "append_frontier", "fork_shared_prefix"}
    # What is read again are tails of blocks, where another lane goes on, or another session in the lane.
    assert 0 <= trace["read_tokens"] - trace["least_tokens"] < 64 * 4
    assert 0 <= poor["read_tokens"] - poor["least_tokens"] < 64 * 7


def test_every_trace_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--sizes", "short", "--lanes", "1", "2", "--turns", "2", "--fork-at", "9"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[:3] for line in out.splitlines()[1:3]] == [["short", "1", "2"], ["short", "2", "2"]]
    assert "short, 2 lanes: full_reset 1, append_frontier 1\n" in out


def test_a_server_that_cannot_start_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--", "--max-context", "99999"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
