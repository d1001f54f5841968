"""From generated token ids to what a client sees: text, reasoning and answer, stop strings, counts.

The stages, in order: bytes to well-formed text, reasoning and answer apart, then stop strings within each of the two
(so that a stop string neither matches think markup nor the white space around it), then tool calls.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ninfer.text.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallParse,
    ToolCallStarted,
    append_delta,
)
from ninfer.text.detokenise import Detokeniser
from ninfer.text.prompt import TOOL_CALL_OPEN
from ninfer.text.reasoning import ChannelText, ReasoningSplitter
from ninfer.text.stops import StopScanner
from ninfer.text.tool_calls import ToolCallReader
from ninfer.text.tool_thinking import ThinkingGate
from ninfer.text.tool_values import DeclaredTools

__all__ = [
    "ContentDelta",
    "Delta",
    "OutputParser",
    "ReasoningDelta",
    "ToolCallArguments",
    "ToolCallEnded",
    "ToolCallParse",
    "ToolCallStarted",
    "ToolUse",
]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What the reading of tool calls needs; a request that may call nothing has none of it.

    tools      the tools that may be called
    new_id     gives the id of the next call, `call_` and 16 hex digits
    tolerant   `--tolerant-tool-calls`
    exclusive  the answer is calls or something else, and its first character decides (serving spec, 7.4)
    """

    tools: DeclaredTools
    new_id: Callable[[], str]
    tolerant: bool = False
    exclusive: bool = False

    def reader(self) -> ToolCallReader:
        """A reader for one text."""
        return ToolCallReader(self.tools, self.new_id, tolerant=self.tolerant)


class OutputParser:
    """Parses the output of one request; the deltas join to the same result for every grouping of the ids.

    text_bytes    bytes of a generated id, :meth:`Tokenizer.text_bytes`
    stop_ids      ids that end the output; empty when the request ignores them
    opens_think   the prompt ended inside a think block, :attr:`RenderedPrompt.opens_think`
    stops         stop strings, none of them empty (ValueError)
    stops_in_reasoning
                  whether they also count in reasoning (Chat, Responses) or only in the answer (Messages, serving 9.1)
    tool_use      without it the markup of calls is text
    exact         the answer is published as it stands behind the thinking, white space in front of it included

    Counts (serving spec 5.3): `completion_tokens` are the ids up to and including the one that ended the output,
    `reasoning_tokens` those of them that came while reasoning was open, the one that closes it included.
    """

    def __init__(
        self,
        text_bytes: Callable[[int], bytes],
        *,
        stop_ids: frozenset[int],
        opens_think: bool,
        stops: Sequence[str] = (),
        stops_in_reasoning: bool = True,
        tool_use: ToolUse | None = None,
        exact: bool = False,
    ) -> None:
        self._text_bytes = text_bytes
        self._stop_ids = stop_ids
        self._detokeniser = Detokeniser()
        self._splitter = ReasoningSplitter(opens_think, exact=exact)
        self._scanner = StopScanner(stops)
        self._stops_in_reasoning = stops_in_reasoning
        self._scans_reasoning = opens_think
        self._calls = tool_use.reader() if tool_use is not None else None
        self._undecided = tool_use is not None and tool_use.exclusive
        self._gate = ThinkingGate(tool_use.reader) if tool_use is not None and opens_think else None
        self._deltas: list[Delta] = []
        self._read = 0
        # Characters of the model's text that are begun when a token ends; a character begun counts as one.
        self._token_ends: list[int] = []
        self._token_starts: list[int] = []
        # Where in the model's text the published answer begins, and how much of what follows there has been read as
        # answer and been published as such: it is a stretch of that text, because calls come behind it.
        self._answer_start: int | None = None
        self._answered = 0
        self._content_length = 0
        self._tokens_told = 0
        self.reasoning_tokens = 0
        self.stop_id: int | None = None
        self.stop_string: str | None = None
        self._stop_start: int | None = None

    @property
    def completion_tokens(self) -> int:
        return len(self._token_ends)

    @property
    def ended(self) -> bool:
        """Whether a stop id or a stop string has ended the output; what is fed behind it is ignored."""
        return self.stop_id is not None or self.stop_string is not None

    @property
    def in_reasoning(self) -> bool:
        """Whether reasoning is open, or was when a stop string ended the output."""
        return self._splitter.reasoning if self.stop_string is None else self._scans_reasoning

    @property
    def tokens_before_stop(self) -> int:
        """How many ids, from the first on, hold nothing of the stop string or stop id; all of them without either."""
        if self._stop_start is not None:
            return bisect_right(self._token_ends, self._stop_start)
        return self.completion_tokens - (self.stop_id is not None)

    def take_content_tokens(self) -> range:
        """Which ids, counted from the first one fed, begin in the answer's text that was published since the last call
        and do not end in front of it. What holds back a text holds back its ids; calls and stop strings have none.
        """
        count = self.completion_tokens - (self.stop_id is not None)
        if self._answer_start is None or not self._content_length:
            end = self._tokens_told
        else:
            end = min(count, bisect_left(self._token_starts, self._answer_start + self._content_length))
        start = self._tokens_told
        if self._answer_start is not None:
            start = max(start, bisect_right(self._token_ends, self._answer_start))
        told = range(start, max(start, end))
        self._tokens_told = told.stop
        if self.in_reasoning or (self._calls is not None and self._calls.seen.structured_call_count):
            self._tokens_told = max(told.stop, count)  # none of them can be of an answer any more
        return told

    @property
    def tokens_told(self) -> int:
        """Ids in front of this one are in no later answer of :meth:`take_content_tokens`."""
        return self._tokens_told

    def feed(self, token_ids: Iterable[int]) -> list[Delta]:
        """The deltas that ids complete; ids behind the end of the output are ignored and not counted."""
        for token_id in token_ids:
            if self.ended:
                break
            if token_id in self._stop_ids:
                self._count("")
                self.stop_id = token_id
            else:
                self._feed_token(self._text_bytes(token_id))
        return self._take()

    def feed_bytes(self, tokens: Iterable[bytes]) -> list[Delta]:
        """The same for tokens that are given by their bytes."""
        for token in tokens:
            if self.ended:
                break
            self._feed_token(token)
        return self._take()

    @property
    def tool_calls(self) -> ToolCallParse | None:
        """What was seen of tool calls, complete after :meth:`finish`; None without any `tool_use`."""
        if self._gate is not None and self._gate.recovered is not None:
            return self._gate.recovered
        return self._calls.seen if self._calls is not None else None

    def finish(self, *, own_stop: bool = False) -> list[Delta]:
        """What was held back. A stop string that only the end completes still ends the output before it.

        own_stop   the model ended the output itself; a stop id that was fed says so, too
        """
        own_stop = own_stop or self.stop_id is not None
        if self.stop_string is None:
            self._read_text(self._detokeniser.finish())
        if self.stop_string is None:
            self._publish_all(self._splitter.finish())
        if self.stop_string is None:
            self._emit(self._scans_reasoning, self._scanner.finish())
        own_stop = own_stop and self.stop_string is None
        if self._gate is not None:
            self._append(self._gate.finish(recovers=own_stop and not self._splitter.has_closed))
        if self._calls is not None:
            self._append(self._calls.finish(own_stop=own_stop))
        return self._take()

    def _feed_token(self, token: bytes) -> None:
        text = self._detokeniser.push(token)
        self._count(text)
        self._read_text(text)

    def _count(self, text: str) -> None:
        self._token_starts.append(self._read)
        self._read += len(text)
        self._token_ends.append(self._read + self._detokeniser.holds_bytes)
        self.reasoning_tokens += self._splitter.reasoning

    def _read_text(self, text: str) -> None:
        self._publish_all(self._splitter.push(text))
        if self._splitter.has_closed:
            self._close_gate()

    def _publish_all(self, pieces: Iterable[ChannelText]) -> None:
        for piece in pieces:
            if self.stop_string is None:
                self._publish(piece)

    def _publish(self, piece: ChannelText) -> None:
        if piece.reasoning != self._scans_reasoning:
            self._emit(self._scans_reasoning, self._scanner.finish())
            self._scans_reasoning = piece.reasoning
        if not piece.reasoning:
            self._close_gate()
            if self._answer_start is None:
                self._answer_start = piece.end - len(piece.text)
        if piece.reasoning and not self._stops_in_reasoning:
            self._emit(True, piece.text)
            return
        released, match = self._scanner.push(piece.text)
        self._emit(piece.reasoning, released)
        if match is not None:
            self.stop_string = match.stop
            self._stop_start = piece.end - (len(piece.text) - match.end) - len(match.stop)

    def _emit(self, reasoning: bool, text: str) -> None:
        if not text:
            return
        if reasoning:
            self._append(self._gate.push(text) if self._gate is not None else [ReasoningDelta(text)])
        else:
            if self._undecided and text.strip():
                self._undecided = False
                if not text.lstrip().startswith(TOOL_CALL_OPEN[0]):
                    self._calls = None
                    assert self._answer_start is not None
                    self._answer_start += self._answered - self._content_length  # white space that was held for a call
            self._answered += len(text)
            self._append(self._calls.push(text) if self._calls is not None else [ContentDelta(text)])

    def _close_gate(self) -> None:
        if self._gate is not None:
            self._append(self._gate.close())

    def _append(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            if isinstance(delta, ContentDelta):
                self._content_length += len(delta.text)
            append_delta(self._deltas, delta)

    def _take(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas
