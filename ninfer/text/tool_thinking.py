"""Calls that a model writes without having closed its thinking (serving spec, 7.5).

Such calls become the turn if the model then ended it itself and nothing else follows the first of them. So from the
first opener on, thinking is held, and read for calls at the same time, until it is certain what it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto

from ninfer.text.deltas import Delta, ReasoningDelta, ToolCallParse
from ninfer.text.quotes import Quotes
from ninfer.text.tool_calls import ToolCallReader
from ninfer.text.tool_markup import Kind, Lexeme, Lexer

_OPENERS = frozenset((Kind.CALL_OPEN, Kind.WRAPPER_OPEN, Kind.FUNCTION_OPEN))


class _State(Enum):
    LOOKING = auto()  # holds white space before what may be an opener
    HOLDING = auto()  # from an opener on
    PASSING = auto()  # holds nothing: no call comes out of this thinking any more


class ThinkingGate:
    """Passes thinking on.

    new_reader   makes a reader of calls
    recovered    what was seen of calls that came out of the thinking, or None
    """

    def __init__(self, new_reader: Callable[[], ToolCallReader]) -> None:
        self._new_reader = new_reader
        self._state = _State.LOOKING
        self._lexer = Lexer()
        self._quotes = Quotes()
        self._queue: deque[Lexeme] = deque()
        self._white: list[str] = []
        self._held: list[Lexeme] = []
        self._trial = new_reader()
        self._calls: list[Delta] = []
        self._out: list[str] = []
        self.recovered: ToolCallParse | None = None

    def push(self, text: str) -> list[Delta]:
        """The thinking that more of it makes certain."""
        if self._state is _State.PASSING:
            return [ReasoningDelta(text)]
        self._queue.extend(self._lexer.push(text))
        while self._queue:
            self._read(self._queue.popleft())
        return self._take()

    def close(self) -> list[Delta]:
        """Thinking has been closed: what was held is thinking, and so is all that follows."""
        if self._state is not _State.PASSING:
            self._pass_on()
        return self._take()

    def finish(self, *, recovers: bool) -> list[Delta]:
        """The output is over; `recovers` if thinking was never closed and the model ended its turn itself."""
        if recovers and self._state is _State.HOLDING:
            begun = self._lexer.finish()
            self._held += begun
            self._calls += self._trial.feed(begun)
            self._calls += self._trial.finish(own_stop=True)
            seen = self._trial.seen
            if self._is_pure() and seen.structured_call_count and not seen.incomplete_calls:
                self.recovered = replace(seen, recovered_from_reasoning=True)
                return self._calls
        self._pass_on()
        return self._take()

    def _read(self, lexeme: Lexeme) -> None:
        if self._state is _State.HOLDING:
            self._hold(lexeme)
        elif lexeme.kind is Kind.WHITE:
            self._quotes.push(lexeme.text)
            self._white.append(lexeme.text)
        elif lexeme.kind in _OPENERS and not self._quotes.quotes(opens_line_alone=lexeme.kind is Kind.CALL_OPEN):
            self._state = _State.HOLDING
            self._trial = self._new_reader()
            self._hold(lexeme)
        else:
            self._say(lexeme)

    def _hold(self, lexeme: Lexeme) -> None:
        self._held.append(lexeme)
        self._calls += self._trial.feed([lexeme])
        if self._is_pure():
            return
        first, *rest = self._held
        if first.kind is Kind.FUNCTION_OPEN and not self._trial.tally.structured_call_count:
            # No more than a mention of a tag, and not of the one that opens calls: the next opener may be a call's.
            self._held, self._calls = [], []
            self._state = _State.LOOKING
            self._say(first)
            self._queue.extendleft(reversed(rest))
        else:
            self._pass_on()

    def _is_pure(self) -> bool:
        """Whether there has been nothing but calls to declared tools, or what may become one."""
        return self._trial.tally.fallback_reason == "none" and not self._trial.trailing_bytes

    def _say(self, lexeme: Lexeme) -> None:
        self._quotes.push(lexeme.text)
        self._out += [*self._white, lexeme.text]
        self._white.clear()

    def _pass_on(self) -> None:
        lexemes = [*self._held, *self._queue, *self._lexer.finish()]
        self._out += [*self._white, *(lexeme.text for lexeme in lexemes)]
        self._white.clear()
        self._held.clear()
        self._queue.clear()
        self._state = _State.PASSING

    def _take(self) -> list[Delta]:
        text = "".join(self._out)
        self._out.clear()
        return [ReasoningDelta(text)] if text else []
