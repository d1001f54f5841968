"""Which sessions lie in files of the disk cache, and which file goes when there is no room. Pure: names and sizes only.

A file holds the blocks of a history and the states behind some of them. A conversation that is saved again, longer,
replaces its shorter file; beyond that the file that was used longest ago goes first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: `blocks` names of all its blocks, `states` depths that it can be gone on from; the last is its end."""

    file: str
    blocks: tuple[str, ...]
    states: tuple[int, ...]
    bytes: int


class DiskIndex:
    """Files of at most `capacity` bytes in all; none with 0. `least` is the fewest tokens that are worth a file.

    name   what names of this process's files begin with
    """

    def __init__(self, capacity: int, least: int, name: str) -> None:
        self.capacity = capacity
        self.least = least
        self.used = 0
        self._name = name
        self._named = 0
        self._entries: dict[str, Entry] = {}  # the one used longest ago first
        self._by_state: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def new_name(self) -> str:
        """A name that no file has had."""
        self._named += 1
        return f"{self._name}-{self._named}"

    def has_state(self, block: str) -> bool:
        """Whether a file can be gone on from behind this block."""
        return block in self._by_state

    def deepest(self, blocks: Sequence[str], least: int, most: int) -> tuple[Entry, int] | None:
        """The file, and the depth in it, that a history can be gone on from deepest between two depths, if any can."""
        for depth in range(min(most, len(blocks)), max(least, 1) - 1, -1):
            files = self._by_state.get(blocks[depth - 1])
            if files:
                return self._entries[files[-1]], depth
        return None

    def touch(self, file: str) -> None:
        """It was asked for."""
        self._entries[file] = self._entries.pop(file)

    def add(self, entry: Entry) -> list[str]:
        """A file is there; returns files that go for it, which may be itself."""
        gone = self.forget(set(entry.blocks))
        self._entries[entry.file] = entry
        self.used += entry.bytes
        for depth in entry.states:
            self._by_state.setdefault(entry.blocks[depth - 1], []).append(entry.file)
        while self.used > self.capacity:
            oldest = next(iter(self._entries))
            self.drop(oldest)
            gone.append(oldest)
        return gone

    def drop(self, file: str) -> bool:
        """The file goes; False if it has gone before."""
        entry = self._entries.pop(file, None)
        if entry is None:
            return False
        self.used -= entry.bytes
        for depth in entry.states:
            block = entry.blocks[depth - 1]
            self._by_state[block].remove(file)
            if not self._by_state[block]:
                del self._by_state[block]
        return True

    def forget(self, blocks: Collection[str]) -> list[str]:
        """Drop the files whose last block is one of these; returns them."""
        gone = [entry.file for entry in self._entries.values() if entry.blocks[-1] in blocks]
        for file in gone:
            self.drop(file)
        return gone
