"""What is likely to be drawn next in a constrained answer, and what may be drawn behind each such token.

Likely is what the grammar leaves no choice about, and where it does what somebody has guessed: both stand in one row of
tokens, because a right guess may lead to where only one text can follow, and such a text to where a guess goes on.
Nothing of it has to be drawn (speculation spec, 10.6): a token that is not ends what counts, as any wrong guess does.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from ninfer.errors import DeadEnd


@dataclass(frozen=True, slots=True)
class Ahead:
    """Tokens, and a mask behind each.

    guessed   whether the first is a guess, where the grammar left a choice
    """

    ids: tuple[int, ...] = ()
    masks: tuple[bytes, ...] = field(default=(), repr=False)
    guessed: bool = False


NOTHING = Ahead()


class Place(Protocol):
    """A place in a grammar, which moves on with the tokens that it takes."""

    def mask(self) -> bytes:
        """What may be drawn there; raises DeadEnd if nothing may."""
        ...

    def forced(self) -> Sequence[int]:
        """The text behind it that the grammar leaves no choice about, as a tokenizer cuts it."""
        ...

    def take(self, token_id: int) -> bool:
        """Go on behind a token; False if the grammar has none there."""
        ...


def walk(place: Place, present: bytes, guesses: Sequence[int], most: int, ends: Set[int]) -> Ahead:
    """At most so many tokens from a place on, which moves along; no more than there are guesses if it begins with one.

    present   its mask
    guesses   tokens that are guessed to follow one another there; they count for as long as they are what stands there
    ends      ids that end the answer: there is nothing behind them

    A token that is not legal, or that ends the answer, ends the row in front of it: there it could only be rejected, or
    be drawn as the last one without having been guessed.
    """
    ids: list[int] = []
    masks: list[bytes] = []
    guessed = False
    text: Sequence[int] = ()
    while len(ids) < most:
        text = text or place.forced()
        at = len(ids)
        wanted = (*text[:1], *(guesses[at : at + 1] if ids == list(guesses[:at]) else ()))
        token = next((each for each in wanted if each not in ends and legal(present, each)), None)
        if token is None or not place.take(token):
            break
        try:
            present = place.mask()
        except DeadEnd:
            break  # whoever really gets there is told
        if not ids and list(text[:1]) != [token]:
            guessed, most = True, min(most, len(guesses))
        text = text[1:] if list(text[:1]) == [token] else ()
        ids.append(token)
        masks.append(present)
    return Ahead(tuple(ids), tuple(masks), guessed)


def legal(mask: bytes, token_id: int) -> bool:
    """Whether a mask leaves an id."""
    return token_id // 8 < len(mask) and bool(mask[token_id // 8] >> token_id % 8 & 1)
