"""Reasoning and answer told apart in the text a model writes (model spec 15).

With a prompt that opened a think block the output is, in one line:

    white [<think>] reasoning </think> ( white <think> reasoning </think> )* white answer

Reasoning is trimmed, its parts are joined by a blank line, the answer begins with its first character that is not
white. Markers inside the answer are answer. Without an opened block everything is answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from ninfer.text.prompt import THINK_CLOSE, THINK_OPEN

_PART_JOINT = "\n\n"


@dataclass(frozen=True, slots=True)
class ChannelText:
    """A piece of reasoning or of the answer.

    reasoning   which of the two
    text        not empty
    end         how many characters of the model's text had been read behind the last one of this piece
    """

    reasoning: bool
    text: str
    end: int


class _State(Enum):
    OPENED = auto()  # reasoning, only white space so far; a repeated opener is swallowed
    REOPENED = auto()  # the same behind an opener of the model's own: one more would be text
    THINKING = auto()  # reasoning has begun; holds its trailing white space and what may begin the closing marker
    CLOSED = auto()  # behind the closing marker, only white space so far
    ANSWER = auto()  # everything is answer to the end


_REASONING = frozenset((_State.OPENED, _State.REOPENED, _State.THINKING))


class ReasoningSplitter:
    """Splits text that arrives in pieces; for every split the pieces of a channel join to the same text.

    exact   a blank line, no more, stands between the closing marker and the answer, which keeps its white space: so
            constrained answers are written (serving spec, 6.2)
    """

    def __init__(self, opens_think: bool, *, exact: bool = False) -> None:
        self._state = _State.OPENED if opens_think else _State.ANSWER
        self._steps: dict[_State, Callable[[str], str | None]] = {
            _State.OPENED: self._step_blank,
            _State.REOPENED: self._step_blank,
            _State.THINKING: self._step_thinking,
            _State.CLOSED: self._step_exact if exact else self._step_blank,
            _State.ANSWER: self._step_answer,
        }
        self._exact = exact
        self.has_closed = False  # whether the closing marker has been read
        self._read = 0
        self._held = ""
        self._white: list[str] = []
        self._joint = ""
        self._has_reasoning = False
        self._out: list[ChannelText] = []

    @property
    def reasoning(self) -> bool:
        """Whether the next character belongs to reasoning."""
        return self._state in _REASONING

    def push(self, text: str) -> list[ChannelText]:
        self._read += len(text)
        rest: str | None = self._held + text
        self._held = ""
        while rest:
            rest = self._steps[self._state](rest)
        out, self._out = self._out, []
        return out

    def finish(self) -> list[ChannelText]:
        """What was held back for a marker that did not come; white space at the end of reasoning is gone."""
        held, self._held = self._held, ""
        if held and not (self._exact and self._state is _State.CLOSED):
            self._emit("".join(self._white) + held, 0)
        out, self._out = self._out, []
        return out

    def _emit(self, text: str, unread: int) -> None:
        reasoning = self.reasoning
        if reasoning:
            text, self._joint, self._has_reasoning = self._joint + text, "", True
        self._out.append(ChannelText(reasoning, text, self._read - unread))

    def _step_blank(self, text: str) -> str | None:
        text = text.lstrip()
        repeated = self._state is not _State.REOPENED
        if repeated and text != THINK_OPEN and THINK_OPEN.startswith(text):
            self._held = text
            return None
        if repeated and text.startswith(THINK_OPEN):
            if self._has_reasoning:
                self._joint = _PART_JOINT
            self._state = _State.REOPENED
            return text[len(THINK_OPEN) :]
        if text:
            self._state = _State.ANSWER if self._state is _State.CLOSED else _State.THINKING
        return text

    def _step_exact(self, text: str) -> str | None:
        if text != _PART_JOINT and _PART_JOINT.startswith(text):
            self._held = text
            return None
        self._state = _State.ANSWER
        return text.removeprefix(_PART_JOINT)

    def _step_thinking(self, text: str) -> str | None:
        body, marker, rest = text.partition(THINK_CLOSE)
        if not marker:
            self._held = _possible_start(body, THINK_CLOSE)
            body = body[: len(body) - len(self._held)]
        said = body.rstrip()
        if said:
            self._white.append(said)
            self._emit("".join(self._white), len(body) - len(said) + len(self._held) + len(marker) + len(rest))
            self._white.clear()
        if not marker:
            self._white.append(body[len(said) :])
            return None
        self._white.clear()
        self._state = _State.CLOSED
        self.has_closed = True
        return rest

    def _step_answer(self, text: str) -> str | None:
        self._emit(text, 0)
        return None


def _possible_start(text: str, marker: str) -> str:
    """The longest suffix of the text that is a proper prefix of the marker."""
    at = text.rfind(marker[0], max(0, len(text) - len(marker) + 1))
    return text[at:] if at >= 0 and marker.startswith(text[at:]) else ""
