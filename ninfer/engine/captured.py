"""What rounds consist of, captured once and replayed."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

import torch

from ninfer.engine.device_layout import Workspace


class Part(Enum):
    """A sequence of launches that is captured. Without guesses a round is one of them."""

    GUESS = auto()  # the drafter looks at what is new, and guesses
    ROUND = auto()  # tokens are drawn
    TURN = auto()  # what the drafter has to know of them is put where it looks


_Kind = tuple[Part, int, int]  # lanes, and guesses of each


class Captured:
    """All parts of the rounds of a workspace; launched as they are until they are captured."""

    def __init__(self, workspace: Workspace, *, drafter: bool) -> None:
        self._launches = _launches(workspace, drafter)
        self._graphs: dict[_Kind, torch.cuda.CUDAGraph] = {}

    def replay(self, part: Part, lanes: int, drafts: int = 0) -> None:
        """Queue a part of a round of so many lanes and guesses."""
        graph = self._graphs.get((part, lanes, drafts))
        if graph is not None:
            graph.replay()
        else:
            self._launches[part, lanes, drafts]()

    def launch_all(self) -> None:
        """Every part once, as it is."""
        for launch in self._launches.values():
            launch()

    def capture(self) -> None:
        """Capture every part; the parts share the memory that launches take, since they follow each other."""
        pool = torch.cuda.graph_pool_handle()
        for kind, launch in sorted(self._launches.items(), reverse=True, key=lambda item: item[0][1:]):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                launch()
            self._graphs[kind] = graph


def _launches(workspace: Workspace, drafter: bool) -> dict[_Kind, Callable[[], None]]:
    if workspace.drafting is None:
        return {(Part.ROUND, round_.rows, 0): round_.launch for round_ in workspace.rounds}
    launches: dict[_Kind, Callable[[], None]] = {}
    for (lanes, drafts), round_ in workspace.drafting.rounds.items():
        launches[Part.ROUND, lanes, drafts] = round_.verify
        if drafter:
            launches[Part.GUESS, lanes, drafts] = round_.guess
            if not drafts:
                launches[Part.TURN, lanes, 0] = round_.turn
    return launches
