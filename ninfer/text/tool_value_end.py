"""Where a parameter's value ends, although the value may quote the very tags that end it (serving spec, 7.5).

Openers and closers inside are counted. A closer without an opener inside is the value's own if the next thing, white
space aside, is another parameter, the function's closer or the end; otherwise it is text. A closer that has an opener
inside is text too, unless the function ends right behind it: then one of the openers was plain text, and the value ends
here. A function's closer that has its own opener inside ends nothing, nor does a call's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ninfer.text.tool_markup import Kind, Lexeme


class ValueEnd:
    """Reads the lexemes of one value.

    tag            word of the parameter's tag, so that only the same closer can end the value
    function_tag   the same of the function around it
    write          takes the value's text; one newline at each end belongs to the frame
    """

    def __init__(self, tag: str, function_tag: str, write: Callable[[str], None]) -> None:
        self._tag = tag
        self._function_tag = function_tag
        self._write = write
        self._parameters = self._functions = self._calls = 0  # opened inside and not closed
        self._held: list[Lexeme] = []  # from a closer on that may be the end
        self._last = Kind.PARAMETER_CLOSE  # of those, white space aside
        self._is_own = False
        self._newline = ""
        self._begun = False

    def push(self, lexeme: Lexeme) -> Sequence[Lexeme] | None:
        """Read one; once the value has ended, the lexemes that stand behind it."""
        if not self._held:
            self._read(lexeme)
            return None
        if lexeme.kind is Kind.WHITE:
            self._held.append(lexeme)
            return None
        if self._ends_with(lexeme):
            return [*self._held[1:], lexeme]
        if not self._holds_with(lexeme):
            self._release()
            self._read(lexeme)
        return None

    def finish(self, *, own_stop: bool) -> Sequence[Lexeme] | None:
        """The same at the end of the output; `own_stop` if the model ended it. None: the value was cut."""
        if self._held and (self._is_own or (own_stop and self._last is not Kind.PARAMETER_CLOSE)):
            return self._held[1:]
        return None

    def _ends_with(self, lexeme: Lexeme) -> bool:
        closes_function = lexeme.kind is Kind.FUNCTION_CLOSE and lexeme.tag == self._function_tag
        if self._last is Kind.PARAMETER_CLOSE:
            if self._is_own:
                return closes_function or lexeme.kind is Kind.PARAMETER_OPEN
            return closes_function and not self._functions
        if self._is_own:
            return lexeme.kind in (Kind.CALL_OPEN, Kind.WRAPPER_CLOSE)
        return self._last is Kind.FUNCTION_CLOSE and lexeme.kind is Kind.CALL_CLOSE and not self._calls

    def _holds_with(self, lexeme: Lexeme) -> bool:
        """Whether the end is still open with this one, which ends nothing by itself."""
        if self._is_own:
            # A call that ends without its function's closer: only if nothing but the end or another call follows.
            holds = lexeme.kind is Kind.CALL_CLOSE and self._last is Kind.PARAMETER_CLOSE
        elif self._last is Kind.PARAMETER_CLOSE:
            holds = lexeme.kind is Kind.FUNCTION_CLOSE and lexeme.tag == self._function_tag
            self._functions -= holds
        else:
            holds = self._last is Kind.FUNCTION_CLOSE and lexeme.kind is Kind.CALL_CLOSE
            self._calls -= holds
        if holds:
            self._held.append(lexeme)
            self._last = lexeme.kind
        return holds

    def _release(self) -> None:
        held, self._held = self._held, []
        for lexeme in held:
            self._write_text(lexeme.text)

    def _read(self, lexeme: Lexeme) -> None:
        match lexeme.kind:
            case Kind.PARAMETER_CLOSE if lexeme.tag == self._tag:
                self._held.append(lexeme)
                self._last = lexeme.kind
                self._is_own = not self._parameters
                self._parameters -= not self._is_own
                return
            case Kind.PARAMETER_OPEN if lexeme.tag == self._tag:
                self._parameters += lexeme.name is not None
            case Kind.FUNCTION_OPEN if lexeme.tag == self._function_tag:
                self._functions += lexeme.name is not None
            case Kind.FUNCTION_CLOSE if lexeme.tag == self._function_tag:
                self._functions -= self._functions > 0
            case Kind.CALL_OPEN:
                self._calls += 1
            case Kind.CALL_CLOSE:
                self._calls -= self._calls > 0
        self._write_text(lexeme.text)

    def _write_text(self, text: str) -> None:
        if not self._begun:
            self._begun = True
            text = text.removeprefix("\n")
        text = self._newline + text
        self._newline = "\n" if text.endswith("\n") else ""
        text = text.removesuffix("\n")
        if text:
            self._write(text)
