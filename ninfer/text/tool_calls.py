"""Tool calls read out of an answer while it is being written (serving spec, 7.5).

    answer text  <tool_call> ws <function=NAME> parameters </function> ws </tool_call>  more calls

Text is published at once, except what may still belong to a call. Once a tool is named and declared its call is
announced, and its arguments flow. What turns out to be no call goes back into the text, byte for byte, and all of it
but its first tag is read again; behind a call it is dropped, because the answer is then a turn of calls.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto

from ninfer.text.deltas import (
    ContentDelta,
    Delta,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallParse,
    ToolCallStarted,
    append_delta,
)
from ninfer.text.quotes import Quotes
from ninfer.text.tool_call import CallState, TaggedCall
from ninfer.text.tool_header import MangledHeader
from ninfer.text.tool_json import ObjectEnd
from ninfer.text.tool_markup import Kind, Lexeme, Lexer
from ninfer.text.tool_tally import Tally
from ninfer.text.tool_values import DeclaredTools, JsonCall, read_json_call

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


class _State(Enum):
    TEXT = auto()  # holds white space that the text ends with
    WRAPPER = auto()  # behind <function_calls>; from here on a region is held that may be no call
    HEADER = auto()  # behind <tool_call>
    MANGLED = auto()  # behind <tool_call> and something that may be a damaged opener of a function
    BARE = auto()  # behind a function's opener without <tool_call>: a call only if parameters or the closer follow
    JSON = auto()  # in an object behind <tool_call>
    JSON_END = auto()  # behind it
    CALL = auto()  # in a call that is announced; holds nothing but what its value holds
    UNDECLARED = auto()  # in a call to a tool that is not declared; held to its end


# Inside what may become a call, and nobody knows yet to which tool.
_UNNAMED = frozenset((_State.WRAPPER, _State.HEADER, _State.MANGLED, _State.BARE, _State.JSON, _State.JSON_END))


class ToolCallReader:
    """Reads the answer of one request.

    tools      the tools that may be called; with none of them a reader has no use
    new_id     gives the id of the next call, `call_` and 16 hex digits
    tolerant   repair what is only slightly damaged, and return calls to tools that are not declared
    """

    def __init__(self, tools: DeclaredTools, new_id: Callable[[], str], *, tolerant: bool = False) -> None:
        self._tools = tools
        self._new_id = new_id
        self._tolerant = tolerant
        self._lexer = Lexer()
        self._quotes = Quotes()
        self._state = _State.TEXT
        self._steps: dict[_State, Callable[[Lexeme], None]] = {
            _State.TEXT: self._step_text,
            _State.WRAPPER: self._step_wrapper,
            _State.HEADER: self._step_header,
            _State.MANGLED: self._step_mangled,
            _State.BARE: self._step_bare,
            _State.JSON: self._step_json,
            _State.JSON_END: self._step_json_end,
            _State.CALL: self._step_call,
            _State.UNDECLARED: self._step_undeclared,
        }
        self._queue: deque[Lexeme] = deque()
        self._white: list[str] = []
        self._region: list[Lexeme] = []
        self._json = ObjectEnd()
        self._json_text: list[str] = []
        self._mangled = MangledHeader()
        self._call: TaggedCall | None = None
        self._swallows: set[Kind] = set()  # closers behind a call that belong to it
        self._touches_call = False  # nothing but white space and closers since the last call
        self._begins_closer = True
        self._deltas: list[Delta] = []
        self.tally = Tally()
        self.trailing_bytes = 0

    @property
    def seen(self) -> ToolCallParse:
        """What has been seen so far; complete after :meth:`finish`."""
        return self.tally.frozen()

    def push(self, text: str) -> list[Delta]:
        """What more of the answer makes certain."""
        return self.feed(self._lexer.push(text))

    def feed(self, lexemes: Iterable[Lexeme]) -> list[Delta]:
        """The same for a text that has been cut already."""
        self._queue.extend(lexemes)
        self._run()
        return self._take()

    def finish(self, *, own_stop: bool) -> list[Delta]:
        """The answer is over; `own_stop` if the model ended it itself."""
        if self.tally.structured_call_count and not own_stop and self._state in _UNNAMED:
            self.tally.incomplete_calls += 1
        begun = self._lexer.finish()
        # What was begun behind the last parameter may have been one more.
        self._begins_closer = "".join(lexeme.text for lexeme in begun[:2])[:2] in ("", "<", "</")
        if self._state is not _State.CALL:
            self._queue.extend(begun)
            self._run()
        while self._state is not _State.TEXT:
            self._end_region(own_stop)
            self._run()
        if not self.tally.structured_call_count:
            self._publish("")
        return self._take()

    def _run(self) -> None:
        while self._queue:
            self._steps[self._state](self._queue.popleft())

    def _take(self) -> list[Delta]:
        self._publish_arguments()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _step_text(self, lexeme: Lexeme) -> None:
        if lexeme.kind is Kind.WHITE:
            self._quotes.push(lexeme.text)
            self._white.append(lexeme.text)
        elif not self._opens(lexeme):
            self._plain(lexeme)
        else:
            self.tally.marker_seen = True
            self._region = [lexeme]
            match lexeme.kind:
                case Kind.CALL_OPEN:
                    self._state = _State.HEADER
                case Kind.WRAPPER_OPEN:
                    self._state = _State.WRAPPER
                case _:
                    self._bare(lexeme)

    def _opens(self, lexeme: Lexeme) -> bool:
        """Whether a lexeme of the text begins a region that may be a call."""
        if lexeme.kind not in (Kind.CALL_OPEN, Kind.WRAPPER_OPEN, Kind.FUNCTION_OPEN):
            return False
        if self.tally.structured_call_count and not self._touches_call and lexeme.kind is not Kind.CALL_OPEN:
            return False
        return not self._quotes.quotes(opens_line_alone=lexeme.kind is Kind.CALL_OPEN)

    def _plain(self, lexeme: Lexeme) -> None:
        """A word that is no markup, or markup that belongs to nothing."""
        self._quotes.push(lexeme.text)
        if not self.tally.structured_call_count:
            self._publish(lexeme.text)
            return
        self._white.clear()
        if lexeme.kind in self._swallows:
            self._swallows.remove(lexeme.kind)
        else:
            self._touches_call = False
            size = len(lexeme.text.encode())
            self.trailing_bytes += size
            self.tally.discarded_bytes += size

    def _publish(self, text: str) -> None:
        self._white.append(text)
        text = "".join(self._white)
        self._white.clear()
        if text:
            append_delta(self._deltas, ContentDelta(text))

    def _reject(self, reason: str) -> None:
        """The region is no call: its first tag is text, the rest is read again."""
        self.tally.note_fallback(reason)
        first, *rest = self._region
        self._region = []
        self._state = _State.TEXT
        self._plain(first)
        self._queue.extendleft(reversed(rest))

    def _step_wrapper(self, lexeme: Lexeme) -> None:
        self._region.append(lexeme)
        match lexeme.kind:
            case Kind.WHITE:
                pass
            case Kind.CALL_OPEN:
                self._state = _State.HEADER
            case Kind.FUNCTION_OPEN:
                self._bare(lexeme)
            case _:
                self._reject("malformed_structure")

    def _bare(self, opener: Lexeme) -> None:
        fault = self._fault_of(opener.name)
        if fault is None:
            self._state = _State.BARE
        else:
            self._reject(fault)

    def _fault_of(self, name: str | None) -> str | None:
        if name is None or not _NAME.fullmatch(name):
            return "invalid_tool_name"
        return None if name in self._tools else "undeclared_tool"

    def _step_bare(self, lexeme: Lexeme) -> None:
        opener = next(held for held in self._region if held.kind is Kind.FUNCTION_OPEN)
        named = lexeme.kind is Kind.PARAMETER_OPEN and lexeme.name is not None
        if named or (lexeme.kind is Kind.FUNCTION_CLOSE and lexeme.tag == opener.tag):
            assert opener.name is not None
            self._announce(opener.name, opener.tag)
            self._step_call(lexeme)
            return
        self._region.append(lexeme)
        if lexeme.kind is not Kind.WHITE:
            self._reject("malformed_structure")

    def _step_header(self, lexeme: Lexeme) -> None:
        self._region.append(lexeme)
        if lexeme.kind is Kind.WHITE:
            return
        if lexeme.kind is Kind.WORD and lexeme.text.startswith("{"):
            self._json = ObjectEnd()
            self._json_text.clear()
            self._state = _State.JSON
            self._read_json(lexeme)
        elif lexeme.kind is Kind.FUNCTION_OPEN and lexeme.name is not None:
            self._named(lexeme.name, lexeme.tag)
        elif self._tolerant:
            self._mangled = MangledHeader()
            self._state = _State.MANGLED
            self._read_mangled(lexeme)
        else:
            self._reject("invalid_tool_name" if lexeme.kind is Kind.FUNCTION_OPEN else "malformed_structure")

    def _step_mangled(self, lexeme: Lexeme) -> None:
        self._region.append(lexeme)
        self._read_mangled(lexeme)

    def _read_mangled(self, lexeme: Lexeme) -> None:
        header = self._mangled
        if not header.push(lexeme):
            self._reject("malformed_structure")
        elif header.name is not None:
            if header.keeps_last:
                self._queue.appendleft(self._region.pop())
            self._named(header.name, header.tag)
            if self._state is _State.CALL:
                self.tally.tolerant_recovered = True

    def _named(self, name: str, tag: str) -> None:
        """A call inside <tool_call> has a name."""
        fault = self._fault_of(name)
        if fault is None:
            self._announce(name, tag)
        elif fault == "undeclared_tool":
            self.tally.note_fallback(fault)
            self._call = TaggedCall(name, tag, self._tools)
            self._state = _State.UNDECLARED
        else:
            self._reject(fault)

    def _announce(self, name: str, tag: str) -> None:
        self._swallows = {Kind.WRAPPER_CLOSE} if self._region[0].kind is Kind.WRAPPER_OPEN else self._swallows
        self._region = []
        self._start(name)
        self._call = TaggedCall(name, tag, self._tools)
        self._state = _State.CALL

    def _start(self, name: str) -> None:
        self._white.clear()
        count = self.tally.structured_call_count
        append_delta(self._deltas, ToolCallStarted(count, self._new_id(), name))
        self.tally.structured_call_count = count + 1

    def _step_call(self, lexeme: Lexeme) -> None:
        assert self._call is not None
        behind = self._call.push(lexeme)
        if self._call.state is CallState.CLOSED:
            self._end_call(self._call)
            self._queue.extendleft(reversed(behind))

    def _end_call(self, call: TaggedCall) -> None:
        self._publish_arguments()
        self.tally.add(call)
        self._call = None
        append_delta(self._deltas, ToolCallEnded(self.tally.structured_call_count - 1))
        self._leave_call(closed_outside=call.closer is not Kind.FUNCTION_CLOSE)

    def _leave_call(self, *, closed_outside: bool) -> None:
        self._state = _State.TEXT
        self._touches_call = True
        self._swallows -= {Kind.CALL_CLOSE}
        if not closed_outside:
            self._swallows |= {Kind.CALL_CLOSE}

    def _publish_arguments(self) -> None:
        if self._state is _State.CALL:
            assert self._call is not None
            text = self._call.arguments.take()
            if text:
                append_delta(self._deltas, ToolCallArguments(self.tally.structured_call_count - 1, text))

    def _step_undeclared(self, lexeme: Lexeme) -> None:
        call = self._call
        assert call is not None
        if call.state is CallState.BODY and lexeme.kind is Kind.CALL_OPEN:
            self._give_back()
            self._queue.appendleft(lexeme)
            return
        self._region.append(lexeme)
        behind = call.push(lexeme)
        if call.state is not CallState.CLOSED:
            return
        if not self._tolerant:
            self._give_back()
            return
        self._publish_undeclared(call)
        self._queue.extendleft(reversed(behind))

    def _publish_undeclared(self, call: TaggedCall) -> None:
        """A complete call to a tool that is not declared, for a tolerant server."""
        self.tally.tolerant_recovered = True
        self._region = []
        self._start(call.name)
        self._state = _State.CALL
        self._end_call(call)

    def _give_back(self) -> None:
        """The whole region is text; nothing in it is read again, it may quote calls of its own."""
        region, self._region = self._region, []
        self._call = None
        self._state = _State.TEXT
        for lexeme in region:
            if lexeme.kind is Kind.WHITE:
                self._step_text(lexeme)
            else:
                self._plain(lexeme)

    def _step_json(self, lexeme: Lexeme) -> None:
        self._region.append(lexeme)
        self._read_json(lexeme)

    def _read_json(self, lexeme: Lexeme) -> None:
        size = self._json.push(lexeme.text)
        self._json_text.append(lexeme.text[:size])
        if self._json.failed or size < len(lexeme.text):
            self._reject("malformed_structure")
        elif self._json.ended:
            self._state = _State.JSON_END

    def _step_json_end(self, lexeme: Lexeme) -> None:
        self._region.append(lexeme)
        if lexeme.kind is Kind.CALL_CLOSE:
            self._end_json()
        elif lexeme.kind is not Kind.WHITE:
            self._reject("malformed_structure")

    def _end_json(self) -> None:
        call = read_json_call("".join(self._json_text))
        fault = "malformed_structure" if call is None else self._fault_of(call.name)
        if call is None or (fault is not None and not (self._tolerant and fault == "undeclared_tool")):
            assert fault is not None
            self.tally.note_fallback(fault)
            self._give_back()
            return
        self.tally.tolerant_recovered |= fault is not None
        self._publish_json(call)

    def _publish_json(self, call: JsonCall) -> None:
        if self._region[0].kind is Kind.WRAPPER_OPEN:
            self._swallows = {Kind.WRAPPER_CLOSE}
        self._region = []
        self._start(call.name)
        index = self.tally.structured_call_count - 1
        append_delta(self._deltas, ToolCallArguments(index, call.arguments))
        append_delta(self._deltas, ToolCallEnded(index))
        self.tally.duplicate_parameters_repaired += call.repeated
        self._leave_call(closed_outside=True)

    def _end_region(self, own_stop: bool) -> None:
        """The output ends inside a region."""
        mends = self._tolerant and own_stop
        if self._state in (_State.CALL, _State.UNDECLARED):
            self._end_in_call(own_stop, mends)
        elif self._state is _State.JSON_END and mends:
            self.tally.tolerant_recovered = True
            self._end_json()
        else:
            self._reject("malformed_structure")

    def _end_in_call(self, own_stop: bool, mends: bool) -> None:
        call = self._call
        assert call is not None
        call.finish(own_stop=own_stop)
        if mends and call.state is CallState.BODY and self._begins_closer:
            self.tally.tolerant_recovered = True
            call.close()
        if self._state is _State.UNDECLARED:
            if call.state is CallState.CLOSED and self._tolerant:
                self._publish_undeclared(call)
            else:
                self._give_back()
        elif call.state is CallState.CLOSED:
            self._end_call(call)
        else:
            call.cut()
            self.tally.incomplete_calls += 1
            self._publish_arguments()
            self.tally.add(call)
            self._call = None
            self._state = _State.TEXT
