"""The token ids that lanes hold, kept by whoever lands their steps: the scheduler knows names of blocks only.

What a text that repeats is likely to go on with is found here too, where its tokens are.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninfer.actors.messages import GenerationRequest
from ninfer.ledger import BlockNames, Ledger, PromptIdentity
from ninfer.speculation.copying import CopyIndex, CopyRules


class Ledgers:
    """One ledger per lane, or None for a lane that holds nothing. All on the event loop.

    names     of blocks
    copying   how guesses are copied from a request's text; None if they are not
    """

    def __init__(self, lanes: int, names: BlockNames, copying: CopyRules | None = None) -> None:
        self.names = names
        self.copying = copying
        self._lanes: list[Ledger | None] = [None] * lanes
        self._copies: list[CopyIndex | None] = [None] * lanes
        self._owners: list[int | None] = [None] * lanes

    def begin(self, lane: int, request_id: int, request: GenerationRequest) -> None:
        """The lane works for this request from now on."""
        self._owners[lane] = request_id
        identity = request.identity or PromptIdentity.of(self.names, request.prompt_ids)
        self._lanes[lane] = Ledger(self.names, request.prompt_ids, identity)
        if self.copying is not None:
            self._copies[lane] = request.copies or self.copying.index(request.prompt_ids, request.max_tokens)

    def put(self, lane: int, ledger: Ledger | None) -> None:
        """The lane holds this now."""
        self._lanes[lane] = ledger
        self._copies[lane] = self._owners[lane] = None

    def followed(self, ids: Sequence[int], blocks: Sequence[str]) -> tuple[tuple[int, int], ...]:
        """Requests with whose history a prompt with these full blocks begins, each with the number of tokens; those of
        which that is less than their own prompt are left out.
        """
        found = []
        for owner, ledger in zip(self._owners, self._lanes, strict=True):
            same = ledger.in_common(ids, blocks) if owner is not None and ledger is not None else 0
            if owner is not None and same:
                found.append((owner, same))
        return tuple(found)

    def __getitem__(self, lane: int) -> Ledger | None:
        return self._lanes[lane]

    def drawn(self, lane: int, ids: Sequence[int]) -> tuple[str, ...]:
        """Tokens were drawn on a lane; returns names of the blocks that they fill."""
        ledger, copies = self._lanes[lane], self._copies[lane]
        if copies is not None:
            copies.extend(ids)
        return ledger.extend(ids) if ledger is not None else ()

    def guesses(self, lane: int, most: int) -> tuple[int, ...]:
        """Tokens that followed what the text of a lane ends with when that stood in it before; none if it did not."""
        copies = self._copies[lane]
        return copies.propose(most) if copies is not None else ()
