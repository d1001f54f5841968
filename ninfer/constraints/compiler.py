"""Grammars made ready once and kept (serving spec, 6.5). Everything here blocks: it is for worker threads."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from llguidance import LLMatcher, LLParserLimits

from ninfer.constraints.constraint import Constraint, GrammarAnswer, RegexAnswer, branch_of, lark
from ninfer.constraints.matcher import Matcher, Reading
from ninfer.constraints.schema import UNSATISFIABLE, UNSUPPORTED
from ninfer.constraints.vocabulary import Vocabulary
from ninfer.errors import DeadEnd, RequestRejected
from ninfer.text.tokenizer import Tokenizer

CACHE_BYTES = 256 << 20
# Longest grammar that is given to the library.
SOURCE_MAX = 4 << 20
COLD_AT_ONCE = 2

Provenance = Literal["hit", "built", "waited"]


def _limits() -> LLParserLimits:
    """About half a second for a compilation and a tenth for a mask at the library's stated rates, instead of its
    defaults, which real schemas and character-wise grammars over a large vocabulary exceed."""
    return LLParserLimits(
        initial_lexer_fuel=20_000_000,
        step_lexer_fuel=2_000_000,
        step_max_items=2_000_000,
        max_lexer_states=250_000,
        max_items_in_row=65_000,
        verbose_errors=False,
    )


@dataclass(frozen=True, slots=True)
class Compiled:
    """A constraint that can be enforced, from which every request gets a matcher of its own.

    grammar    at the start of the answer; never advanced, only copied. None for an answer that is free
    cache      where it came from
    prepare_s  time that it took, waiting included
    """

    constraint: Constraint
    vocabulary: Vocabulary = field(repr=False)
    grammar: LLMatcher | None = field(repr=False)
    cache: Provenance
    prepare_s: float

    def matcher(self, reading: Reading) -> Matcher:
        """A matcher at the start of an output; raises RequestRejected for a prefix that the language does not have."""
        grammar = self.grammar.deep_copy() if self.grammar is not None else None
        try:
            return Matcher(self.vocabulary, grammar, reading, branch_of(self.constraint))
        except DeadEnd:
            message = "the assistant message at the end does not begin an answer that the constraint allows"
            raise RequestRejected(message, code=DeadEnd.code) from None


class Compiler:
    """Compiles constraints for one vocabulary; safe for several threads.

    clock   monotonic seconds
    """

    def __init__(
        self, tokenizer: Tokenizer, *, cache_bytes: int = CACHE_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()
        self._vocabulary_lock = threading.Lock()
        self._vocabulary: Vocabulary | None = None
        self._cold = threading.BoundedSemaphore(COLD_AT_ONCE)
        self._built: OrderedDict[str, LLMatcher] = OrderedDict()
        self._building: dict[str, Future[LLMatcher]] = {}
        self._held_bytes = 0

    def warm(self) -> None:
        """Make ready what every constraint needs, so that the first request does not wait for it: seconds for a large
        vocabulary."""
        self._vocabulary_made()

    def compile(self, constraint: Constraint) -> Compiled:
        """The constraint ready for use; raises RequestRejected for one that cannot be enforced."""
        start = self._clock()
        vocabulary = self._vocabulary_made()
        if constraint.answer is None and constraint.calls is None:
            return Compiled(constraint, vocabulary, None, "hit", self._clock() - start)
        source = lark(constraint, vocabulary.is_ordinary)
        if len(source) > SOURCE_MAX:
            raise _refused(constraint, "the grammar is too large", 0, source)
        grammar, cache = self._grammar(constraint, vocabulary, source)
        return Compiled(constraint, vocabulary, grammar, cache, self._clock() - start)

    def _vocabulary_made(self) -> Vocabulary:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self._tokenizer)
            return self._vocabulary

    def _grammar(self, constraint: Constraint, vocabulary: Vocabulary, source: str) -> tuple[LLMatcher, Provenance]:
        with self._lock:
            found = self._built.get(source)
            if found is not None:
                self._built.move_to_end(source)
                return found, "hit"
            pending = self._building.get(source)
            if pending is None:
                mine: Future[LLMatcher] = Future()
                self._building[source] = mine
        if pending is not None:
            return pending.result(), "waited"
        try:
            with self._cold:
                built = _build(constraint, vocabulary, source)
        except BaseException as error:
            with self._lock:
                del self._building[source]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._building[source]
            self._keep(source, built)
        mine.set_result(built)
        return built, "built"

    def _keep(self, source: str, built: LLMatcher) -> None:
        self._built[source] = built
        self._held_bytes += _weight(source)
        while self._held_bytes > self._cache_bytes and len(self._built) > 1:
            oldest, _ = self._built.popitem(last=False)
            self._held_bytes -= _weight(oldest)


def _weight(source: str) -> int:
    """Memory of a compiled grammar: the library does not say; measured, its automata are below this."""
    return (64 << 10) + 32 * len(source)


def _build(constraint: Constraint, vocabulary: Vocabulary, source: str) -> LLMatcher:
    grammar = LLMatcher(vocabulary.library, LLMatcher.grammar_from_lark(source), log_level=0, limits=_limits())
    if grammar.is_error():
        raise _failed(constraint, grammar.get_error(), source)
    try:
        Matcher(vocabulary, grammar.deep_copy(), Reading(), branch_of(constraint)).mask()
    except DeadEnd:
        message = "the constraint allows no answer, or is too complex to enforce"
        raise RequestRejected(message, code=DeadEnd.code, param=_where(constraint, 0, source)) from None
    return grammar


# What the library says of limits of its own, and what that means.
_REASONS = (
    ("recursion limit exceeded", "the schema is nested too deeply"),
    ("panic: ", "the grammar is too large"),
)
_PLACE = re.compile(r"at (\d+)\(\d+\): ")


def _failed(constraint: Constraint, error: str, source: str) -> RequestRejected:
    first = error.partition("\n")[0]
    place = _PLACE.match(first)
    line = int(place.group(1)) if place is not None else 0
    what = first[place.end() :] if place is not None else first
    for sign, reason in _REASONS:
        if sign in what:
            return _refused(constraint, reason, line, source)
    return _refused(constraint, what.removeprefix("failed to compile JSON schema: "), line, source)


def _refused(constraint: Constraint, what: str, line: int, source: str) -> RequestRejected:
    """The refusal for what the library says of a line of the source; 0 if it names none."""
    where = _where(constraint, line, source)
    match constraint.answer:
        case GrammarAnswer() if not constraint.forces_calls:
            code = "invalid_grammar"
        case RegexAnswer() if not constraint.forces_calls:
            code = "invalid_regex"
        case _:
            code = UNSATISFIABLE if what.startswith("Unsatisfiable") else UNSUPPORTED
    return RequestRejected(f"{where} cannot be enforced: {what}", code=code, param=where)


def _where(constraint: Constraint, line: int, source: str) -> str:
    """The request field that a line of the source was made from."""
    named = re.match(r"t(\d+)", source.split("\n")[line - 1]) if line > 0 else None
    calls, answer = constraint.calls, constraint.answer
    if calls is not None and (named is not None or answer is None or constraint.forces_calls):
        return calls.tools[int(named.group(1))].where if named is not None else "tools"
    assert answer is not None
    return answer.where
