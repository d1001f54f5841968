"""Where turns begin in a rendered prompt, and which of these places later prompts may share (serving spec, 14.4).

Prompts of one conversation differ from some turn on: the next request appends to it, edits it, or drops its reasoning.
What lies in front of such a turn is worth keeping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.text.prompt import IM_START, RenderedPrompt
from ninfer.types import Marks

ROLLING_TOOL, STABLE_TURN = "rolling-tool", "stable-turn"
POLICIES = (ROLLING_TOOL, STABLE_TURN)
_TOOL_RESPONSE = "<tool_response>"


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a prompt: its role, the token it begins at, and whether it only carries results of tools."""

    role: str
    begin: int
    is_tool_result: bool


def turns_of(prompt: RenderedPrompt, starts: Sequence[int]) -> list[Turn]:
    """Turns in order; `starts` holds the first token of each segment of the prompt."""
    segments = prompt.segments
    turns = []
    for at, segment in enumerate(segments):
        if not segment.control or segment.text != IM_START or at + 1 == len(segments):
            continue
        role, _, rest = segments[at + 1].text.partition("\n")
        follows = segments[at + 2].text if at + 2 < len(segments) else ""
        turns.append(Turn(role.strip(), starts[at], not rest.strip() and follows == _TOOL_RESPONSE))
    return turns


def marks_of(turns: Sequence[Turn], tokens: int, policy: str) -> Marks:
    """The places of a prompt of `tokens` tokens. Without turns, as of a raw prompt, its end is the only one."""
    if not turns:
        return Marks(turn=tokens)
    queries = [at for at, turn in enumerate(turns) if turn.role == "user" and not turn.is_tool_result]
    query = queries[-1] if queries else -1
    answers = [turn.begin for turn in turns[query + 1 :] if turn.role == "assistant"]
    answer = answers[0] if answers else tokens
    newest = turns[-1].begin if turns[-1].role == "assistant" else tokens
    spoken = [turn.begin for turn in turns if turn.role != "system"]
    return Marks(
        turn=answer if policy == STABLE_TURN else newest,
        message_begin=turns[query].begin if queries else 0,
        message_end=answer if queries else 0,
        preamble=spoken[0] if spoken else tokens,
    )
