"""The tokens of a history and the names of its blocks: what reuse is decided by (serving spec, 14.1 and 14.6).

A block of 64 tokens is named by a keyed digest of its ids and of the name of the block before, so equal names mean
equal histories from the first token on. The key is the process's own: nothing can be read from the names in a log.
"""

from __future__ import annotations

import base64
import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from ninfer.snapshots.digest import SessionDigest, id_bytes
from ninfer.step import PAGE_TOKENS

# 96 bits: two different blocks have the same name once in 10^19 pairs of a million blocks.
_NAME_BYTES = 12


@dataclass(frozen=True, slots=True)
class BlockNames:
    """Names blocks with `key`, at most 64 bytes."""

    key: bytes = field(repr=False)

    def name(self, previous: str, ids: Sequence[int]) -> str:
        """Name of the block of `ids` behind the block `previous`, which is empty for the first."""
        digest = hashlib.blake2b(previous.encode() + id_bytes(ids), digest_size=_NAME_BYTES, key=self.key)
        return base64.urlsafe_b64encode(digest.digest()).decode()

    def names(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Names of all full blocks of a history."""
        names: list[str] = []
        previous = ""
        for begin in range(0, len(ids) - PAGE_TOKENS + 1, PAGE_TOKENS):
            previous = self.name(previous, ids[begin : begin + PAGE_TOKENS])
            names.append(previous)
        return tuple(names)


@dataclass(frozen=True, slots=True)
class PromptIdentity:
    """What a prompt is known by: names of its full blocks, and the digest of all its tokens."""

    blocks: tuple[str, ...]
    digest: SessionDigest = field(repr=False, compare=False)

    @classmethod
    def of(cls, names: BlockNames, ids: Sequence[int]) -> PromptIdentity:
        """About half a microsecond a token: not for the event loop."""
        return cls(names.names(ids), SessionDigest(ids))


class Ledger:
    """A prompt and what has been drawn behind it, also what was drawn after the end and counts for nothing."""

    def __init__(self, names: BlockNames, prompt_ids: Sequence[int], identity: PromptIdentity) -> None:
        self._names = names
        self._prompt = prompt_ids
        self._identity = identity
        self._drawn: list[int] = []
        self._filled: list[str] = []
        self._last = identity.blocks[-1] if identity.blocks else ""
        self._open = list(prompt_ids[len(identity.blocks) * PAGE_TOKENS :])

    def extend(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Append drawn tokens; returns names of the blocks that they fill."""
        filled = []
        for token in ids:
            self._drawn.append(token)
            self._open.append(token)
            if len(self._open) == PAGE_TOKENS:
                self._last = self._names.name(self._last, self._open)
                self._open.clear()
                filled.append(self._last)
        self._filled += filled
        return tuple(filled)

    def in_common(self, ids: Sequence[int], blocks: Sequence[str]) -> int:
        """With how many tokens of this history a prompt with these full blocks begins; 0 if with less than the full
        blocks of the history's own prompt. No more than one block is compared by ids.
        """
        own = self._identity.blocks
        if own and (len(blocks) < len(own) or blocks[len(own) - 1] != own[-1]):
            return 0
        begin = (len(own) + _common(self._filled, blocks[len(own) :])) * PAGE_TOKENS
        drawn = max(begin - len(self._prompt), 0)
        block = [*self._prompt[begin : begin + PAGE_TOKENS], *self._drawn[drawn : drawn + PAGE_TOKENS]][:PAGE_TOKENS]
        return begin + _common(block, ids[begin : begin + PAGE_TOKENS])

    def ids(self, count: int) -> array[int]:
        """[count] the first tokens, typecode `i`."""
        prompt = self._prompt[:count]
        return array("i", prompt) + array("i", self._drawn[: count - len(prompt)])

    def digest(self, count: int) -> str:
        """Session digest of the first tokens; cheap if all of the prompt is among them."""
        behind = count - len(self._prompt)
        if behind < 0:
            return SessionDigest(self._prompt[:count]).value
        digest = self._identity.digest.copy()
        digest.extend(self._drawn[:behind])
        return digest.value


def _common(ours: Sequence[object], theirs: Sequence[object]) -> int:
    """How many of the same both begin with."""
    pairs = zip(ours, theirs, strict=False)
    return next((at for at, (mine, other) in enumerate(pairs) if mine != other), min(len(ours), len(theirs)))
