"""From generated token ids to what a client sees: text, reasoning and answer, stop strings, counts.

The stages, in order: bytes to well-formed text, reasoning and answer apart, then stop strings within each of the two
(so that a stop string neither matches think markup nor the white space around it). A later stage that reads tool calls
joins behind the stop strings, where answer text is emitted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from ninfer.text.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallParse,
    ToolCallStarted,
)
from ninfer.text.detokenise import Detokeniser
from ninfer.text.reasoning import ChannelText, ReasoningSplitter
from ninfer.text.stops import StopScanner

__all__ = [
    "ContentDelta",
    "Delta",
    "OutputParser",
    "ReasoningDelta",
    "ToolCallArguments",
    "ToolCallEnded",
    "ToolCallParse",
    "ToolCallStarted",
]


class OutputParser:
    """Parses the output of one request; the deltas join to the same result for every grouping of the ids.

    text_bytes    bytes of a generated id, :meth:`Tokenizer.text_bytes`
    stop_ids      ids that end the output; empty when the request ignores them
    opens_think   the prompt ended inside a think block, :attr:`RenderedPrompt.opens_think`
    stops         stop strings, none of them empty (ValueError)
    stops_in_reasoning
                  whether they also count in reasoning (Chat, Responses) or only in the answer (Messages, serving 9.1)

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
    ) -> None:
        self._text_bytes = text_bytes
        self._stop_ids = stop_ids
        self._detokeniser = Detokeniser()
        self._splitter = ReasoningSplitter(opens_think)
        self._scanner = StopScanner(stops)
        self._stops_in_reasoning = stops_in_reasoning
        self._scans_reasoning = opens_think
        self._deltas: list[Delta] = []
        self._read = 0
        # Characters of the model's text that are begun when a token ends; a character begun counts as one.
        self._token_ends: list[int] = []
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

    def finish(self) -> list[Delta]:
        """What was held back. A stop string that only the end completes still ends the output before it."""
        if self.stop_string is None:
            self._read_text(self._detokeniser.finish())
        if self.stop_string is None:
            self._publish_all(self._splitter.finish())
        if self.stop_string is None:
            self._emit(self._scans_reasoning, self._scanner.finish())
        return self._take()

    def _feed_token(self, token: bytes) -> None:
        text = self._detokeniser.push(token)
        self._count(text)
        self._read_text(text)

    def _count(self, text: str) -> None:
        self._read += len(text)
        self._token_ends.append(self._read + self._detokeniser.holds_bytes)
        self.reasoning_tokens += self._splitter.reasoning

    def _read_text(self, text: str) -> None:
        self._publish_all(self._splitter.push(text))

    def _publish_all(self, pieces: Iterable[ChannelText]) -> None:
        for piece in pieces:
            if self.stop_string is None:
                self._publish(piece)

    def _publish(self, piece: ChannelText) -> None:
        if piece.reasoning != self._scans_reasoning:
            self._emit(self._scans_reasoning, self._scanner.finish())
            self._scans_reasoning = piece.reasoning
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
        kind = ReasoningDelta if reasoning else ContentDelta
        if self._deltas and isinstance(last := self._deltas[-1], kind):
            self._deltas[-1] = kind(last.text + text)
        else:
            self._deltas.append(kind(text))

    def _take(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas
