"""``ninfer-parse``: the server's output parser on its own, one case per line.

Every line of standard input is a JSON object: `raw`, a list of pieces that are fed one after another (a piece is a
text, or a list of tokens published in one step, in which ``<|im_end|>`` ends the turn), or instead of it `tokens`,
tokens as hex bytes; and optionally `id`, `tools` in the Chat form, `prompt_opens_think`, `stop` and `finish` (`eos`,
`length` or `stop_string`). Every line of standard output is the answer to one of them: what a Chat client would get,
when it would get it, and `error` for a line that cannot be used.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from ninfer.api.chat_response import finish_reason
from ninfer.text.output import (
    ContentDelta,
    Delta,
    OutputParser,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStarted,
    ToolUse,
)
from ninfer.text.prompt import IM_END
from ninfer.text.tool_values import DeclaredTools
from ninfer.types import FinishReason

_REASONS = {
    "eos": FinishReason.STOP_TOKEN,
    "length": FinishReason.OUTPUT_LIMIT,
    "stop_string": FinishReason.STOP_STRING,
}
_END = -1  # stands for the end-of-turn token among the ids of a case


class UnusableCase(ValueError):
    """A line that says nothing the parser could be fed with."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of input; `pieces` are tokens that arrive together, None for the end of the turn."""

    pieces: tuple[tuple[bytes | None, ...], ...]
    tools: DeclaredTools
    opens_think: bool
    stops: tuple[str, ...]
    finish: FinishReason


def read_case(line: object) -> Case:
    """Check one line; raises UnusableCase."""
    if not isinstance(line, dict):
        raise UnusableCase("a case is a JSON object")
    tools = line.get("tools") or []
    stops = line.get("stop") or []
    finish = line.get("finish", "eos")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UnusableCase("tools must be a list of objects")
    if not _are_strings(stops) or not all(stops):
        raise UnusableCase("stop must be a list of strings that are not empty")
    if finish not in _REASONS:
        raise UnusableCase(f"finish must be one of {', '.join(_REASONS)}")
    return Case(
        pieces=tuple(_pieces(line)),
        tools=DeclaredTools(tools),
        opens_think=line.get("prompt_opens_think") is True,
        stops=tuple(stops),
        finish=_REASONS[finish],
    )


def _are_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def _pieces(line: dict[str, object]) -> Iterator[tuple[bytes | None, ...]]:
    raw, tokens = line.get("raw"), line.get("tokens")
    if isinstance(tokens, list) and _are_strings(tokens):
        try:
            yield from ((bytes.fromhex(token),) for token in tokens)
        except ValueError:
            raise UnusableCase("tokens must be bytes in hex") from None
        return
    if not isinstance(raw, list) or not all(isinstance(piece, str) or _are_strings(piece) for piece in raw):
        raise UnusableCase("raw must be a list of strings and of lists of strings, or tokens a list of strings")
    for piece in raw:
        if isinstance(piece, str):
            yield (_bytes(piece),)
        else:
            yield tuple(None if token == IM_END else _bytes(token) for token in piece)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def parse(case: Case) -> dict[str, object]:
    """Feed one case; the answer without its id."""
    tokens: list[bytes] = []
    numbers = itertools.count()
    tool_use = ToolUse(case.tools, lambda: f"call_{next(numbers):016x}") if len(case.tools) else None
    parser = OutputParser(
        tokens.__getitem__,
        stop_ids=frozenset((_END,)),
        opens_think=case.opens_think,
        stops=case.stops,
        tool_use=tool_use,
    )
    published: list[tuple[int, Delta]] = []
    for n, piece in enumerate(case.pieces):
        ids = []
        for token in piece:
            ids.append(_END if token is None else len(tokens))
            if token is not None:
                tokens.append(token)
        published += ((n, delta) for delta in parser.feed(ids))
    own_stop = case.finish is FinishReason.STOP_TOKEN
    published += ((len(case.pieces), delta) for delta in parser.finish(own_stop=own_stop))
    reason = case.finish
    if parser.stop_string is not None:
        reason = FinishReason.STOP_STRING
    elif parser.stop_id is not None:
        reason = FinishReason.STOP_TOKEN
    deltas = [delta for _, delta in published]
    return {
        "content": "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta)) or None,
        "reasoning": "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) or None,
        "tool_calls": _calls(deltas),
        "finish_reason": finish_reason(reason, parser.tool_calls),
        "error": None,
        "deltas": [{"piece": n, **shown} for n, delta in published if (shown := _shown(delta))],
        "usage": {"completion_tokens": parser.completion_tokens, "reasoning_tokens": parser.reasoning_tokens},
    }


def _calls(deltas: Sequence[Delta]) -> list[dict[str, str]]:
    calls = [{"name": delta.name, "arguments": ""} for delta in deltas if isinstance(delta, ToolCallStarted)]
    for delta in deltas:
        if isinstance(delta, ToolCallArguments):
            calls[delta.index]["arguments"] += delta.text
    return calls


def _shown(delta: Delta) -> dict[str, object]:
    match delta:
        case ReasoningDelta():
            return {"reasoning": delta.text}
        case ContentDelta():
            return {"content": delta.text}
        case ToolCallStarted():
            return {"call": delta.index, "name": delta.name}
        case ToolCallArguments():
            return {"call": delta.index, "arguments": delta.text}
        case _:
            return {}


def answers(lines: Iterable[str]) -> Iterator[dict[str, object]]:
    """The answer to each line that is not blank."""
    for text in lines:
        if not text.strip():
            continue
        name: object = None
        try:
            line = json.loads(text)
            name = line.get("id") if isinstance(line, dict) else None
            yield {"id": name, **parse(read_case(line))}
        except (ValueError, RecursionError) as error:
            yield {"id": name, "error": f"{error}"}


def main(argv: list[str] | None = None, source: TextIO | None = None, target: TextIO | None = None) -> int:
    """The console script; reads standard input and writes standard output if no streams are given."""
    argparse.ArgumentParser(prog="ninfer-parse", description=__doc__).parse_args(argv)
    target = target if target is not None else sys.stdout
    for answer in answers(source if source is not None else sys.stdin):
        target.write(json.dumps(answer) + "\n")
    target.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
