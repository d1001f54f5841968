"""The token ids that lanes hold, kept by whoever lands their steps: the scheduler knows names of blocks only."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer.actors.messages import GenerationRequest
from ninfer.ledger import BlockNames, Ledger, PromptIdentity


class Ledgers:
    """One ledger per lane, or None for a lane that holds nothing. All on the event loop."""

    def __init__(self, lanes: int, names: BlockNames) -> None:
        self.names = names
        self._lanes: list[Ledger | None] = [None] * lanes

    def begin(self, lane: int, request: GenerationRequest) -> None:
        """The lane works for this request from now on."""
        identity = request.identity or PromptIdentity.of(self.names, request.prompt_ids)
        self._lanes[lane] = Ledger(self.names, request.prompt_ids, identity)

    def put(self, lane: int, ledger: Ledger | None) -> None:
        """The lane holds this now."""
        self._lanes[lane] = ledger

    def __getitem__(self, lane: int) -> Ledger | None:
        return self._lanes[lane]

    def drawn(self, lane: int, ids: Sequence[int]) -> tuple[str, ...]:
        """Tokens were drawn on a lane; returns names of the blocks that they fill."""
        ledger = self._lanes[lane]
        return ledger.extend(ids) if ledger is not None else ()
