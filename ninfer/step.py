"""What the scheduler may ask of the engine, and what the engine answers: the only ground on which the two meet.

Positions are cache ordinals counted from 0. A page holds :data:`PAGE_TOKENS` positions of the attention cache and is
at the same time one block of the gated DeltaNet (kv-and-state spec, 8.3 and 9.4).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ninfer.types import Sampling

PAGE_TOKENS = 64
# Guesses that a row of a round may have (serving spec, 18.4).
MOST_DRAFTS = 15


def pages_for(tokens: int) -> int:
    """Number of pages that `tokens` positions occupy."""
    return -(-tokens // PAGE_TOKENS)


def standing_block(positions: int, *, drew: int, folds_late: bool) -> int:
    """Block whose entry state a lane holds with `positions` positions in its cache.

    drew        positions that the last step of the lane has added if it was a round, else 0
    folds_late  the engine writes the state of a block that a round has filled when a round begins in the next one
    """
    return (positions - drew) // PAGE_TOKENS if folds_late else positions // PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class PageMapping:
    """Pages appended to a lane's block table: table entry ``first + i`` becomes physical page ``pages[i]``."""

    first: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaneSetup:
    """What a lane needs to know before the first chunk of a request: sent once, with that chunk.

    stop_ids     token ids that end the generation; empty when the request ignores them
    prompt_ids   the whole prompt, for an engine that looks at more than the tokens it is given to read
    logprobs     how many alternatives are told of beside each drawn token; None: nothing is told of it
    """

    sampling: Sampling
    stop_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...] = field(default=(), repr=False)
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class CaptureState:
    """Store the entry state of the block in which the lane stands as image `image`, whatever that held before.

    An image is what a sequence needs beside its pages to go on from a block start: the recurrent state of every layer
    and what the convolution read in front of the block (kv-and-state spec, 9.1 and 9.4). It lies in host memory.
    """

    lane: int
    image: int


@dataclass(frozen=True, slots=True)
class RestoreState:
    """Bring image `image` into a lane, which then stands at the block start at which the image was captured."""

    image: int
    lane: int


@dataclass(frozen=True, slots=True)
class ParkPages:
    """Copy device pages to places in host memory, one to one; the pages may be written again after this."""

    pages: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadPages:
    """Copy places in host memory to device pages, one to one."""

    places: tuple[int, ...]
    pages: tuple[int, ...]


Transfer = CaptureState | RestoreState | ParkPages | LoadPages


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Read the prompt tokens of positions ``[begin, begin + len(token_ids))`` into a lane.

    setup      given exactly with the first chunk of a request, which begins at any block start: the lane's table and
               counts are forgotten first. At 0 its state is cleared as well; beyond, it holds the entry state of that
               block: its own, from the request before, or one that `before` restores. It may also begin inside the
               block whose entry state the lane holds, exactly where the lane stands; the request's other chunks begin
               at block starts
    mapping    pages this chunk needs beyond those already mapped; with `setup` those of all positions from 0 on
    sample     True on the chunk that ends the prompt, unless nothing is to be generated: draw the first token
    parts      steps that carry it out: this one runs the first of so many equal parts of the layers, and each
               :class:`NextPart` the next, with rounds of other lanes between them as one likes. No other chunk is
               launched meanwhile; it draws, and has the transfers of `after`, with the last part
    mask       ids that may be drawn, see :class:`DecodeRow`; only where a token is drawn
    foresee    how many tokens behind the drawn one are guessed, see :class:`DecodeRow`
    before     transfers in front of the chunk, in order
    after      transfers behind it and behind the drawing, in order; the result does not wait for them
    """

    lane: int
    begin: int
    token_ids: tuple[int, ...]
    mapping: PageMapping
    setup: LaneSetup | None
    sample: bool
    before: tuple[Transfer, ...] = ()
    after: tuple[Transfer, ...] = ()
    mask: bytes | None = field(default=None, repr=False)
    parts: int = 1
    foresee: int = 0


@dataclass(frozen=True, slots=True)
class NextPart:
    """Run the next part of the chunk that is under way in this lane."""

    lane: int


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One lane's part of a round. The anchor is the lane's last drawn token, not yet in the cache; its position is
    `position`, which is also the number of positions that are.

    mask     ids that may be drawn, as little-endian 32-bit words: bit ``id % 32`` of word ``id // 32``; None for all.
             Ids behind its last word may not. At least one id is left
    drafts   how many tokens behind the anchor may be guessed and verified along with it; the mapping covers their
             positions. The engine may guess fewer. With a mask all guesses are copied, unless there are `halts`
    copied   guesses to verify instead of the engine's own: at most `drafts`; None leaves it to the engine
    masks    with a mask and without `halts`: what may be drawn behind each copied guess
    halts    ids behind which the mask is another one, in the form of a mask; behind all others it is the same. Such an
             id is the last that this round draws for the row, whatever was guessed behind it
    foresee  how many tokens behind those that the round draws the engine is to guess as well and tell of, for masks
             behind them to be made; it may guess fewer
    """

    lane: int
    position: int
    mapping: PageMapping
    mask: bytes | None = field(default=None, repr=False)
    drafts: int = 0
    copied: tuple[int, ...] | None = field(default=None, repr=False)
    masks: tuple[bytes, ...] = field(default=(), repr=False)
    halts: bytes | None = field(default=None, repr=False)
    foresee: int = 0


@dataclass(frozen=True, slots=True)
class DecodeRound:
    """Advance every row in one batch: by one token, and by one more for every guess that turns out right. The tokens
    are those that rounds without guesses draw. Lanes are distinct; the order of rows changes no result.

    before   transfers in front of the round, in order
    """

    rows: tuple[DecodeRow, ...]
    before: tuple[Transfer, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the model's own probabilities where a token was drawn: over the ids that can be drawn at
    all, before temperature, penalties, cuts and masks.

    logprob        of the drawn token
    alternatives   the likeliest ids with theirs, largest first and of equal ones the lower id; the drawn one may be
                   among them
    """

    token_id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens drawn for one lane in one step, oldest first; `stopped` if the last one is one of its stop ids.

    A stop token is counted and never published; it ends the generation, and none is drawn behind it.

    drafted    guesses that were verified
    accepted   how many of them, from the first on, are among the tokens with another one behind them
    logprobs   one for each token, if the lane's set-up asks for them
    foreseen   what is guessed to follow these tokens, where the row asks for it
    """

    lane: int
    token_ids: tuple[int, ...]
    stopped: bool
    drafted: int = 0
    accepted: int = 0
    logprobs: tuple[TokenLogprobs, ...] = field(default=(), repr=False)
    foreseen: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """Of a chunk, or of one of its parts. `drawn` is None unless the chunk was asked to sample and this was its last
    part. `device_s` is the time that the device spent on it.
    """

    drawn: Drawn | None
    device_s: float


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """One :class:`Drawn` per row, in row order."""

    drawn: tuple[Drawn, ...]
    device_s: float
