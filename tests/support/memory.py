"""What a perfect engine would hold: the history behind every device page, host place, state image and lane.

Histories are byte strings, a byte a token. A page holds the history up to its last written position, so that two pages
are equal only if everything before them is equal as well. Steps are carried out when they are launched, in order, which
is how a device does them; whatever a step relies on is checked then, against the tokens of the request itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ninfer.scheduler import commands as cmd
from ninfer.step import (
    PAGE_TOKENS,
    CaptureState,
    LoadPages,
    PageMapping,
    ParkPages,
    RestoreState,
    Transfer,
    pages_for,
    standing_block,
)


@dataclass(frozen=True)
class Standing:
    """What a lane has run, and the block at whose start its state is."""

    history: bytes
    block: int

    @property
    def state(self) -> bytes:
        return self.history[: self.block * PAGE_TOKENS]


@dataclass(frozen=True)
class Part:
    """A step that is a part of a chunk, and not its last."""

    step: int


class DeviceMemory:
    """`faults` counts how often everything was lost."""

    def __init__(self, lanes: int, folds_late: bool) -> None:
        self.folds_late = folds_late
        self.pages: dict[int, bytes] = {}
        self.places: dict[int, bytes] = {}
        self.images: dict[int, bytes] = {}
        self.lanes: list[Standing | None] = [None] * lanes
        self.tables: dict[int, list[int]] = {}
        self.faults = 0

    def lose(self) -> None:
        """A step has failed: nothing is worth anything."""
        self.pages.clear()
        self.places.clear()
        self.images.clear()
        self.lanes = [None] * len(self.lanes)
        self.faults += 1

    def leave(self, request_id: int) -> None:
        """No step works for this request any more."""
        self.tables.pop(request_id, None)

    def transfer(self, transfer: Transfer) -> None:
        match transfer:
            case CaptureState():
                standing = self.lanes[transfer.lane]
                assert standing is not None, "a state that is not known is captured"
                self.images[transfer.image] = standing.state
            case RestoreState():
                state = self.images[transfer.image]
                self.lanes[transfer.lane] = Standing(state, len(state) // PAGE_TOKENS)
            case ParkPages():
                assert len(set(transfer.pages)) == len(set(transfer.places)) == len(transfer.pages), "one to one"
                for page, place in zip(transfer.pages, transfer.places, strict=True):
                    assert len(self.pages[page]) % PAGE_TOKENS == 0, "a block is parked that is not full"
                    self.places[place] = self.pages[page]
            case LoadPages():
                assert len(set(transfer.pages)) == len(set(transfer.places)) == len(transfer.pages), "one to one"
                for place, page in zip(transfer.places, transfer.pages, strict=True):
                    assert all(page not in table for table in self.tables.values()), "a page in use is overwritten"
                    self.pages[page] = self.places[place]

    def chunk(self, command: cmd.StartChunk, history: bytes) -> None:
        """Carry out a chunk of the prompt `history`."""
        for transfer in command.before:
            self.transfer(transfer)
        begin, end = command.begin, command.end
        if command.first:
            assert command.request_id not in self.tables
            if begin == 0:
                self.lanes[command.lane] = Standing(b"", 0)
            standing = self.lanes[command.lane]
            assert standing is not None
            block = begin // PAGE_TOKENS
            if begin % PAGE_TOKENS:
                assert standing == Standing(history[:begin], block), "the lane stands elsewhere"
            assert standing.state == history[: block * PAGE_TOKENS], "the lane's state is of another history"
            self.lanes[command.lane] = Standing(history[:begin], block)
        table = self._map(command.request_id, command.mapping, end)
        self._run(command.request_id, command.lane, table, begin, end, history)
        self.lanes[command.lane] = Standing(history[:end], end // PAGE_TOKENS)
        for transfer in command.after:
            self.transfer(transfer)

    def round(self, command: cmd.StartRound, histories: Mapping[int, bytes], drawn: Mapping[int, int]) -> None:
        """Carry out a round in which requests with these histories draw so many tokens.

        The positions of guesses are written whether they turn out right or not.
        """
        for transfer in command.before:
            self.transfer(transfer)
        for row in command.rows:
            history, count = histories[row.request_id], drawn[row.request_id]
            end = row.position + count
            guesses = max(row.drafts, row.copies)
            table = self._map(row.request_id, row.mapping, row.position + 1 + guesses)
            wrong = history[:end] + bytes(guesses + 1 - count)
            self._run(row.request_id, row.lane, table, row.position, row.position + 1 + guesses, wrong)
            block = standing_block(end, drew=count, folds_late=self.folds_late)
            self.lanes[row.lane] = Standing(history[:end], block)

    def _map(self, request_id: int, mapping: PageMapping, tokens: int) -> list[int]:
        table = self.tables.setdefault(request_id, [])
        assert mapping.first == len(table)
        table.extend(mapping.pages)
        assert len(table) >= pages_for(tokens)
        assert len(set(table)) == len(table), "a page stands for two blocks"
        return table

    def _run(self, request_id: int, lane: int, table: Sequence[int], begin: int, end: int, history: bytes) -> None:
        """Read everything before `begin`, write up to `end`."""
        standing = self.lanes[lane]
        assert standing is not None
        assert standing.history == history[:begin], "the lane has run something else"
        for block in range(pages_for(begin)):
            upto = min(begin, (block + 1) * PAGE_TOKENS)
            held = self.pages.get(table[block], b"")
            assert held[:upto] == history[:upto], f"block {block} is of another history"
        others = [page for other, pages in self.tables.items() if other != request_id for page in pages]
        for block in range(begin // PAGE_TOKENS, pages_for(end)):
            assert table[block] not in others, "a page is written that another request uses"
            self.pages[table[block]] = history[: min(end, (block + 1) * PAGE_TOKENS)]
