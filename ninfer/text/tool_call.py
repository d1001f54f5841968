"""One call in the tagged form, from behind its opener to its closer (serving spec, 7.5: Body, Value, Close)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from ninfer.text.tool_arguments import ArgumentsWriter
from ninfer.text.tool_markup import Kind, Lexeme
from ninfer.text.tool_value_end import ValueEnd
from ninfer.text.tool_values import DeclaredTools, Types, admits_string, converted


class CallState(Enum):
    """What comes next."""

    BODY = auto()  # between parameters
    VALUE = auto()  # inside one
    CLOSED = auto()  # complete; by the function's closer or by the call's


class TaggedCall:
    """Reads the lexemes of one call.

    closer         what closed it, once it is closed
    discarded      bytes between parameters that belong to nothing, white space not counted
    omitted        parameters left out because their block was empty
    mismatched     values that do not fit their declared type
    """

    def __init__(self, name: str, tag: str, tools: DeclaredTools) -> None:
        self.name = name
        self.state = CallState.BODY
        self.closer: Kind | None = None
        self.arguments = ArgumentsWriter()
        self.discarded = 0
        self.omitted = 0
        self.mismatched = 0
        self._tag = tag
        self._tools = tools
        self._value: ValueEnd | None = None
        self._key = ""
        self._types: Types = None
        self._pieces: list[str] = []

    def push(self, lexeme: Lexeme) -> Sequence[Lexeme]:
        """Read one; once the call is closed, the lexemes that stand behind it."""
        if self._value is None:
            self._between(lexeme)
            return ()
        return self._leave_value(self._value.push(lexeme))

    def finish(self, *, own_stop: bool) -> Sequence[Lexeme]:
        """The output is over. A value may end with it, and then the call; otherwise the call was cut."""
        if self._value is None:
            return ()
        return self._leave_value(self._value.finish(own_stop=own_stop))

    def close(self) -> None:
        """Complete the arguments."""
        self.arguments.close()
        self.state = CallState.CLOSED

    def cut(self) -> None:
        """Let everything out that is known of the arguments, and leave them open."""
        self.arguments.cut(in_string=self.state is CallState.VALUE and admits_string(self._types))

    def _leave_value(self, behind: Sequence[Lexeme] | None) -> Sequence[Lexeme]:
        if behind is None:
            return ()
        self._end_value()
        for n, lexeme in enumerate(behind):
            self._between(lexeme)
            if self.state is CallState.CLOSED:
                return behind[n + 1 :]
        return ()

    def _between(self, lexeme: Lexeme) -> None:
        match lexeme.kind:
            case Kind.WHITE:
                pass
            case Kind.PARAMETER_OPEN if lexeme.name is not None:
                self._begin_value(lexeme.tag, lexeme.name)
            case Kind.FUNCTION_CLOSE if lexeme.tag == self._tag:
                self.closer = lexeme.kind
                self.close()
            case Kind.CALL_CLOSE:
                self.closer = lexeme.kind
                self.close()
            case _:
                self.discarded += len(lexeme.text.encode())

    def _begin_value(self, tag: str, key: str) -> None:
        self.state = CallState.VALUE
        self._key = key
        self._types = self._tools.types(self.name, key)
        if admits_string(self._types):
            self.arguments.begin_string(key)
            self._value = ValueEnd(tag, self._tag, self.arguments.string)
        else:
            self._pieces.clear()
            self._value = ValueEnd(tag, self._tag, self._pieces.append)

    def _end_value(self) -> None:
        self._value = None
        self.state = CallState.BODY
        if admits_string(self._types):
            self.arguments.end_string()
            return
        value = converted("".join(self._pieces), self._types)
        self.mismatched += value.mismatched
        if value.text is None:
            self.omitted += 1
        else:
            self.arguments.member(self._key, value.text)
