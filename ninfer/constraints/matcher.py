"""Which ids may come next in one request (serving spec, 6.2 and 10.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from llguidance import LLMatcher

from ninfer.constraints.ahead import NOTHING, Ahead, walk
from ninfer.constraints.vocabulary import Vocabulary, marker_progress
from ninfer.errors import DeadEnd

EARLY_CLOSE = (
    "\n\n Considering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
    "</think>\n\n"
)

# More tokens than any request draws.
UNLIMITED = 1 << 31


class Stage(Enum):
    """Where the output of a request stands."""

    THINKING = auto()  # thinking is open; all but the end of the turn is free
    CLOSING = auto()  # what stands between the thinking and the answer is still being written
    ANSWER = auto()  # the grammar has the word
    ENDED = auto()  # a stop id has been drawn


class Branch(StrEnum):
    """What the answer is."""

    UNDECIDED = "undecided"
    CONTENT = "content"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class Reading:
    """What of a request the matcher has to know.

    opens_think      the prompt ends inside an open think block
    prefix           what of the answer stands in the prompt already
    thinking_budget  most ids of thinking, >= 1; None for no limit
    max_tokens       most ids of output, which may leave no room for a budget
    """

    opens_think: bool = False
    prefix: str = ""
    thinking_budget: int | None = None
    max_tokens: int = 1 << 31


@dataclass(frozen=True, slots=True)
class ThinkingControl:
    """What became of a budget of thinking (serving spec, 10.4 and 16.4).

    budget       the limit that was in force; None if there was no room for one
    tokens       ids of the text that closed the thinking early
    of_thinking  how many of them came while the thinking was open, the one that closed it included
    """

    budget: int | None = None
    tokens: int = 0
    of_thinking: int = 0


def effective_budget(budget: int, producible: int, suffix: int) -> int | None:
    """The limit that leaves room to close the thinking, None where there is no such room (10.4).

    suffix   ids of the text that closes it, and one
    """
    if producible <= budget or producible - budget >= suffix:
        return budget
    return producible - suffix if producible > suffix else None


class Matcher:
    """Walks with the ids of one request. Not for two threads at a time; its work may take milliseconds.

    grammar   the state at the start of the answer, owned from here on; None for an answer that is free
    branch    what the answer can be before its first id
    """

    def __init__(
        self, vocabulary: Vocabulary, grammar: LLMatcher | None, reading: Reading, branch: Branch = Branch.CONTENT
    ) -> None:
        self._vocabulary = vocabulary
        self._grammar = grammar
        self._present: bytes | None = None  # the mask where the grammar stands, once somebody has asked
        self._forced: list[int] = []
        self._matched = 0
        self._thought = 0
        self._early_close: Sequence[int] = ()
        self._budget: int | None = None
        self._closes_early = False
        self._control_tokens = 0
        self.branch = branch
        self._legal_bits = vocabulary.ordinary_bits
        if branch is not Branch.CONTENT:
            self._legal_bits |= vocabulary.markup_bits
        self.stage = Stage.THINKING if reading.opens_think else Stage.ANSWER
        if reading.opens_think and reading.thinking_budget is not None:
            self._early_close = vocabulary.tokenizer.encode_with_control(EARLY_CLOSE)
            self._budget = effective_budget(reading.thinking_budget, reading.max_tokens, len(self._early_close) + 1)
        if reading.prefix and grammar is not None:
            self._consume(vocabulary.tokenizer.encode(reading.prefix))

    @property
    def control(self) -> ThinkingControl:
        """What has become of the budget so far."""
        tokens = self._control_tokens
        if not tokens:
            return ThinkingControl(self._budget)
        closing = self._early_close.index(self._vocabulary.close_id) + 1
        return ThinkingControl(self._budget, tokens, min(tokens, closing))

    @property
    def may_end(self) -> bool:
        """Whether the answer is complete as it stands."""
        if self.stage is Stage.ANSWER:
            return self._grammar is None or self._grammar.is_accepting()
        return self.stage is Stage.ENDED

    @property
    def is_free(self) -> bool:
        """Whether nothing is held to anything any more."""
        return self.stage is Stage.ENDED or (self.stage is Stage.ANSWER and self._grammar is None)

    @property
    def free(self) -> int:
        """Ids that may be drawn under the present mask, one behind the other, as long as none of `halts` is; 0 where
        each has another mask.
        """
        if self.stage is not Stage.THINKING or self._matched:
            return 0
        return UNLIMITED if self._budget is None else self._budget - self._thought

    @property
    def halts(self) -> bytes:
        """Ids behind which there is another mask where there are `free` ones, in the form of a mask."""
        return self._vocabulary.thinking_halts

    def advance(self, token_ids: Iterable[int]) -> None:
        """Take ids that were drawn under the masks, in order; raises DeadEnd."""
        for token_id in token_ids:
            match self.stage:
                case Stage.THINKING:
                    self._think(token_id)
                case Stage.CLOSING:
                    if token_id != self._forced.pop(0):
                        raise DeadEnd
                    self._control_tokens += self._closes_early
                    if not self._forced:
                        self.stage = Stage.ANSWER
                case Stage.ANSWER:
                    if token_id in self._vocabulary.stop_ids:
                        self.stage = Stage.ENDED
                    else:
                        self._answer(token_id)
                case Stage.ENDED:
                    return

    def mask(self) -> bytes | None:
        """The legal ids as little-endian 32-bit words, bit `id % 32` of word `id // 32`; None if all are.

        Raises DeadEnd if none is.
        """
        vocabulary = self._vocabulary
        if self.stage is Stage.THINKING:
            return vocabulary.thinking_mask(self._matched)
        if self.stage is Stage.CLOSING:
            return vocabulary.only(self._forced[0])
        if self._grammar is None or self.stage is Stage.ENDED:
            return None
        return self._mask_here(self._grammar)

    def ahead(self, most: int, guesses: Sequence[int] = ()) -> Ahead:
        """At most so many ids that are likely to come next, and behind each of them a mask. Nothing is taken.

        guesses   of the answer's next ids: see :func:`ninfer.constraints.ahead.walk`

        The sampler need not draw them: another cut of a text into ids may be legal where no other text is.
        """
        vocabulary, grammar = self._vocabulary, self._grammar
        if not most or self.stage not in (Stage.CLOSING, Stage.ANSWER):
            return NOTHING
        told = tuple(self._forced) if self.stage is Stage.CLOSING else ()
        masks = tuple(map(vocabulary.only, told[1:]))
        if grammar is None:
            return Ahead(told[: min(most, len(masks))], masks[:most])
        if len(masks) >= most:
            return Ahead(told[:most], masks[:most])
        try:
            present = self._mask_here(grammar)
        except DeadEnd:
            return Ahead(told[: len(masks)], masks)  # whoever really gets there is told
        place = _Behind(grammar.deep_copy(), self._mask_of, vocabulary)
        behind = walk(place, present, () if told else guesses, most - len(told), vocabulary.stop_ids)
        if not told:
            return behind
        return Ahead((*told, *behind.ids), (*masks, present, *behind.masks))

    def _mask_here(self, grammar: LLMatcher) -> bytes:
        if self._present is None:
            self._present = self._mask_of(grammar)
        return self._present

    def _mask_of(self, grammar: LLMatcher) -> bytes:
        """What the answer may go on with where the grammar stands; raises DeadEnd if there is nothing."""
        found = grammar.compute_bitmask()
        if grammar.is_error():
            raise DeadEnd
        bits = int.from_bytes(found, "little") & self._legal_bits
        if grammar.is_accepting():
            bits |= self._vocabulary.stop_bits
        if not bits:
            raise DeadEnd
        return bits.to_bytes(self._vocabulary.words * 4, "little")

    def _think(self, token_id: int) -> None:
        vocabulary = self._vocabulary
        if token_id == vocabulary.close_id:
            self._force(vocabulary.after_close)
            return
        self._thought += 1
        self._matched = marker_progress(self._matched, vocabulary.tokenizer.text_bytes(token_id))
        if self._budget is not None and self._thought >= self._budget:
            self._closes_early = True
            self._force(self._early_close)

    def _answer(self, token_id: int) -> None:
        if token_id == self._vocabulary.call_id:
            self.branch = Branch.TOOLS
        elif self.branch is Branch.UNDECIDED:
            self.branch = Branch.CONTENT
        if self._grammar is not None:
            self._consume((token_id,))

    def _force(self, token_ids: Sequence[int]) -> None:
        self._forced = list(token_ids)
        self.stage = Stage.CLOSING if token_ids else Stage.ANSWER

    def _consume(self, token_ids: Sequence[int]) -> None:
        assert self._grammar is not None
        self._present = None
        if self._grammar.try_consume_tokens(list(token_ids)) != len(token_ids):
            raise DeadEnd


class _Behind:
    """A place behind what has been drawn; the `grammar` that stands there is its own."""

    def __init__(self, grammar: LLMatcher, mask_of: Callable[[LLMatcher], bytes], vocabulary: Vocabulary) -> None:
        self._grammar, self._mask_of, self._vocabulary = grammar, mask_of, vocabulary

    def mask(self) -> bytes:
        return self._mask_of(self._grammar)

    def forced(self) -> Sequence[int]:
        text = self._grammar.compute_ff_bytes().decode(errors="ignore")
        return self._vocabulary.tokenizer.encode(text) if text else ()

    def take(self, token_id: int) -> bool:
        return self._grammar.try_consume_tokens([token_id]) == 1
