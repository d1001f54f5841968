"""An engine without a model: what it draws stands in a script. Everything around the forward pass stays as it is.

It takes the plans that every engine takes and gets token ids alone, so it finds the question in the prompt the way a
model does: by the control tokens of the turns. Steps take as long as the script says, on one time line, as on a device:
a step begins when it is launched and the one before it is through. The chunks of a prompt share its `prefill_s` by
their tokens, and the last takes the first token's `token_s` as well. In a round all rows move together: it ends when
`token_s` have passed, for each of its rows, since that lane's token before. So a lane that had to wait for a chunk of
another does not wait again, and a slower lane slows those that share its rounds.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar, overload

from ninfer.errors import StartupError
from ninfer.step import (
    DecodeResult,
    DecodeRound,
    DecodeRow,
    Drawn,
    LaneSetup,
    NextPart,
    PrefillChunk,
    PrefillResult,
    TokenLogprobs,
    Transfer,
)
from ninfer.text.prompt import IM_END, IM_START, THINK_CLOSE, THINK_OPEN
from ninfer.text.tokenizer import Tokenizer

TOOL_RESPONSE_OPEN = "<tool_response>"
TOOL_RESPONSE_CLOSE = "</tool_response>"
_MEMBERS = ("match", "output", "token_s", "prefill_s", "then")

R = TypeVar("R", PrefillResult, DecodeResult)


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """What is said to a prompt whose last user text contains `match`; seconds before each token, and for the prompt.

    then   what is said instead when results of calls follow that text: the first after one turn of results, and so on;
           the last to all further ones. Without it, `output` again.
    """

    match: str
    output: str
    token_s: float = 0.0
    prefill_s: float = 0.0
    then: tuple[str, ...] = ()


def read_script(path: Path) -> tuple[ScriptLine, ...]:
    """The lines of a script, JSON objects, blank lines left out; raises StartupError naming the line at fault."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise StartupError(f"--script {path} cannot be read: {error.strerror}") from None
    return tuple(_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip())


def _line(path: Path, number: int, line: bytes) -> ScriptLine:
    def fault(what: str) -> StartupError:
        return StartupError(f"--script {path}, line {number}: {what}")

    try:
        entry = json.loads(line)
    except ValueError as error:
        raise fault(f"not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise fault("not an object")
    if unknown := entry.keys() - set(_MEMBERS):
        raise fault(f"{min(unknown)!r} is none of {', '.join(_MEMBERS)}")
    for name in ("match", "output"):
        if not _is_text(entry.get(name)):
            raise fault(f"{name} must be a string of characters")
    for name in ("token_s", "prefill_s"):
        value = entry.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise fault(f"{name} must be a number of seconds, 0 or more")
    then = entry.pop("then", [])
    if not isinstance(then, list) or not all(map(_is_text, then)):
        raise fault("then must be an array of strings of characters")
    return ScriptLine(**entry, then=tuple(then))


def _is_text(value: object) -> bool:
    """Whether it is a string that can be said: JSON can spell halves of characters, which no text has."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


@dataclass(frozen=True, slots=True)
class Answer:
    """Token ids of an output, its end of turn included, and its pace."""

    token_ids: tuple[int, ...]
    token_s: float
    prefill_s: float


class Script:
    """The lines, and how prompts are read."""

    def __init__(self, lines: Sequence[ScriptLine], tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._control = dict(tokenizer.control_ids)
        self._end_of_turn = tokenizer.control_id(IM_END)
        self._answers = [
            (line.match, [self._answer(output, line.token_s, line.prefill_s) for output in (line.output, *line.then)])
            for line in lines
        ]

    def answer(self, prompt: Sequence[int]) -> Answer:
        """What the first line that matches says, or `OK.` behind a closed think block."""
        question, results = self._question(prompt)
        for match, answers in self._answers:
            if match in question:
                return answers[min(results, len(answers) - 1)]
        return self._answer(f"{THINK_CLOSE}\n\nOK." if self._opens_think(prompt) else "OK.")

    def _answer(self, output: str, token_s: float = 0.0, prefill_s: float = 0.0) -> Answer:
        return Answer((*self._tokenizer.encode_with_control(output), self._end_of_turn), token_s, prefill_s)

    def last_user_text(self, prompt: Sequence[int]) -> str:
        """Text of the last user turn that has any of its own; a prompt without turns is such a text as a whole."""
        return self._question(prompt)[0]

    def _question(self, prompt: Sequence[int]) -> tuple[str, int]:
        """The last user text, and the number of turns behind it that hold results of calls alone."""
        start = self._control.get(IM_START)
        starts = [at for at, token in enumerate(prompt) if token == start]
        results = 0
        for at in reversed(starts):
            role, _, text = self._own_text(prompt[at + 1 :]).partition("\n")
            if role == "user" and text.strip():
                return text, results
            results += role == "user"
        return ("" if starts else self._tokenizer.decode(prompt)), results

    def journal_line(self, prompt: Sequence[int]) -> bytes:
        """The prompt as text, and its control tokens counted by id."""
        control = {token: spelling for spelling, token in self._control.items()}
        counts = Counter(control[token] for token in prompt if token in control)
        # Escaped, so that no character in a prompt ends the line for whoever reads the journal.
        return json.dumps({"prompt": self._tokenizer.decode(prompt), "control": counts}).encode() + b"\n"

    def _own_text(self, turn: Sequence[int]) -> str:
        """Up to the end of the turn, without tool results and control tokens."""
        own: list[int] = []
        inside = False
        opened, closed = (self._control.get(spelling) for spelling in (TOOL_RESPONSE_OPEN, TOOL_RESPONSE_CLOSE))
        for token in turn:
            if token == self._end_of_turn:
                break
            if token in (opened, closed):
                inside = token == opened
            elif not inside and not self._tokenizer.is_control(token):
                own.append(token)
        return self._tokenizer.decode(own)

    def _opens_think(self, prompt: Sequence[int]) -> bool:
        marks = {self._control.get(spelling): spelling for spelling in (THINK_OPEN, THINK_CLOSE, IM_START, IM_END)}
        return next((marks[token] for token in reversed(prompt) if token in marks), None) == THINK_OPEN


def _certain(token: int, count: int | None) -> tuple[TokenLogprobs, ...]:
    """A script leaves no choice: what it says has probability 1, and nothing else has any."""
    if count is None:
        return ()
    return (TokenLogprobs(token, 0.0, ((token, 0.0),) if count else ()),)


@dataclass(slots=True)
class _Lane:
    """`ids` are those of the prompt and all drawn ones, by position; `said` counts drawn tokens of the answer.

    to_read   prompt tokens that are not read for another request already; 0 while the prompt is not known as a whole
    """

    ids: list[int] = field(default_factory=list)
    setup: LaneSetup | None = None
    to_read: int = 0
    answer: Answer | None = None
    said: int = 0
    stopped: bool = False
    last_token_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Timed(Generic[R]):
    """A step whose result is there at a time of the clock."""

    result: R
    at: float
    wait_until: Callable[[float], None]

    def wait(self) -> R:
        """The result, when it is due."""
        self.wait_until(self.at)
        return self.result


class ScriptedEngine:
    """Carries out plans by the script. One thread launches its steps, in order.

    journal      file that gets a line per request, appended before its first token; raises StartupError
    clock        seconds, monotonic; `wait_until` returns when it shows a time

    What comes before the first `reset` is the warm-up, which is no request and is not noted in the journal.
    """

    def __init__(
        self,
        script: Script,
        journal: Path,
        lanes: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait_until: Callable[[float], None] | None = None,
    ) -> None:
        self._script = script
        self._clock = clock
        self._wait_until = wait_until if wait_until is not None else self._sleep_until
        self._lanes = [_Lane() for _ in range(lanes)]
        self._is_warm = False
        self._free_at = -math.inf
        self._journal = journal
        try:
            self._note(b"")
        except OSError as error:
            raise StartupError(f"the journal {journal} cannot be written: {error.strerror}") from None

    @property
    def folds_late(self) -> bool:
        """There are no states, so none is late."""
        return False

    @property
    def chunk_parts(self) -> tuple[int, ...]:
        """A chunk is one step."""
        return (1,)

    @property
    def appends(self) -> bool:
        """Any position is as good as another."""
        return True

    @property
    def image_bytes(self) -> int:
        """A state is nothing: what a lane has read comes with each prompt."""
        return 0

    @property
    def page_bytes(self) -> int:
        """Nor is anything in a page."""
        return 0

    def read_pages(self, pages: Sequence[int]) -> memoryview:
        """No bytes."""
        return memoryview(b"")

    def read_places(self, places: Sequence[int]) -> memoryview:
        """No bytes."""
        return memoryview(b"")

    @property
    def host_seconds(self) -> tuple[float, float]:
        """Nothing takes time."""
        return 0.0, 0.0

    def write_pages(self, pages: Sequence[int], data: memoryview) -> None:
        """There are no bytes to be written."""
        assert not data.nbytes

    def read_image(self, image: int) -> memoryview:
        """No bytes."""
        return memoryview(b"")

    def write_image(self, image: int, data: memoryview) -> None:
        """There are no bytes to be written."""
        assert not data.nbytes

    def capture(self, lane: int, image: int) -> None:
        """There is nothing to be stored."""

    def transfer(self, transfers: Sequence[Transfer]) -> None:
        """Nor to be moved."""

    def reset(self) -> None:
        """Forget every lane."""
        self._is_warm = True
        self._free_at = -math.inf
        self._lanes = [_Lane() for _ in self._lanes]

    @overload
    def launch(self, plan: PrefillChunk | NextPart) -> Timed[PrefillResult]: ...
    @overload
    def launch(self, plan: DecodeRound) -> Timed[DecodeResult]: ...
    def launch(self, plan: PrefillChunk | NextPart | DecodeRound) -> Timed[PrefillResult] | Timed[DecodeResult]:
        """Take the step's effects now; its result comes in its time."""
        assert not isinstance(plan, NextPart), "no chunk is cut into parts here"
        begin = max(self._clock(), self._free_at)
        if isinstance(plan, PrefillChunk):
            end, drawn = self._prefill(plan, begin)
            self._free_at = end
            return Timed(PrefillResult(drawn, end - begin), end, self._wait_until)
        end = max(begin, *map(self._due, plan.rows))
        self._free_at = end
        rows = tuple(self._decode(row, end) for row in plan.rows)
        return Timed(DecodeResult(rows, end - begin), end, self._wait_until)

    def _prefill(self, chunk: PrefillChunk, begin: float) -> tuple[float, Drawn | None]:
        lane = self._lanes[chunk.lane]
        if chunk.setup is not None:
            # What stands before a prompt's first chunk was read for another, in this lane or elsewhere.
            prompt = chunk.setup.prompt_ids
            lane = self._lanes[chunk.lane] = _Lane(list(prompt[: chunk.begin]), chunk.setup)
            if prompt:
                lane.answer, lane.to_read = self._script.answer(prompt), len(prompt) - chunk.begin
        assert chunk.begin == len(lane.ids), f"chunk at {chunk.begin}, lane at {len(lane.ids)}"
        lane.ids += chunk.token_ids
        end = begin
        if lane.answer is not None:
            end += lane.answer.prefill_s * len(chunk.token_ids) / lane.to_read
        if not chunk.sample:
            return end, None
        if self._is_warm:
            self._note(self._script.journal_line(lane.ids))
        if lane.answer is None:
            lane.answer = self._script.answer(lane.ids)
            end += lane.answer.prefill_s
        end += lane.answer.token_s
        return end, self._draw(chunk.lane, end)

    def _due(self, row: DecodeRow) -> float:
        lane = self._lanes[row.lane]
        assert lane.answer is not None, f"lane {row.lane} has no prompt"
        return lane.last_token_at + (0.0 if lane.stopped else lane.answer.token_s)

    def _decode(self, row: DecodeRow, end: float) -> Drawn:
        at = len(self._lanes[row.lane].ids) - 1
        assert row.position == at, f"row at {row.position}, lane at {at}"
        return self._draw(row.lane, end)

    def _draw(self, number: int, at: float) -> Drawn:
        """The next token of the answer; behind its end the end of the turn again, for whoever ignores it."""
        lane = self._lanes[number]
        assert lane.answer is not None
        assert lane.setup is not None
        words = lane.answer.token_ids
        token = words[min(lane.said, len(words) - 1)]
        lane.said += 1
        lane.ids.append(token)
        lane.last_token_at = at
        stopped = token in lane.setup.stop_ids
        lane.stopped |= stopped
        return Drawn(number, (token,), stopped, logprobs=_certain(token, lane.setup.logprobs))

    def _note(self, line: bytes) -> None:
        with self._journal.open("ab") as file:
            file.write(line)

    def _sleep_until(self, at: float) -> None:
        while (rest := at - self._clock()) > 0:
            time.sleep(rest)
