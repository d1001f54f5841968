"""Guesses the next tokens of lanes with the model's multi-token prediction layer (speculation spec, 3).

The layer's cache holds at position t what it makes of the decoder's hidden state there and of the token at t + 1. So it
looks at the positions of a step when the tokens behind them are known, at the beginning of the next step of the lane;
until then their hidden states are pending. Nothing here changes what is drawn: a guess that is wrong costs time only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.artifact.config import TextConfig
from ninfer.engine.batches import Span, round_batch
from ninfer.model.cache import Cache
from ninfer.model.mtp import likeliest, predict
from ninfer.model.weights import TextWeights


@dataclass(frozen=True, slots=True)
class _Pending:
    """Positions from `position` on whose hidden states wait, with the tokens behind them; the last may be unknown."""

    position: int
    count: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """So many guesses behind the anchor of a lane, which stands at `position`."""

    lane: int
    position: int
    drafts: int


class Drafter:
    """What the drafter remembers of every lane, and its passes."""

    def __init__(self, config: TextConfig, weights: TextWeights, cache: Cache, public_ids: int, lanes: int) -> None:
        self._config, self._weights, self._cache, self._public_ids = config, weights, cache, public_ids
        self._pending: list[_Pending | None] = [None] * lanes
        # Guesses behind what is pending, of lanes for which there are some already.
        self._made: list[tuple[int, ...] | None] = [None] * lanes

    def forget(self, lane: int) -> None:
        """A lane starts anew, or goes on from a state whose hidden state nobody kept: one position stays as it is."""
        self._pending[lane] = self._made[lane] = None

    def read(self, lane: int, begin: int, ids: Tensor, hidden: Tensor) -> None:
        """Look at a chunk of a prompt: ids [n] int64 and hidden [n, H] of positions from `begin` on.

        The last position waits for the token behind it. What is pending ends there, and the token behind that is the
        first of these, whatever was drawn there before.
        """
        before = self._pending[lane]
        if before is not None:
            assert before.position + before.count == begin
            ids = torch.cat([self._ids(before.tokens[:-1]), ids])
            begin, hidden = before.position, torch.cat([self._rows(lane, before), hidden])
        else:
            ids = ids[1:]
        if ids.shape[0]:
            self._predict([Span(lane, begin, ids.shape[0])], ids, hidden[:-1])
        self._keep(lane, begin + ids.shape[0], hidden[-1:], ())

    def drew(self, lane: int, token: int) -> None:
        """The token behind a prompt."""
        pending = self._pending[lane]
        assert pending is not None
        assert pending.count == 1
        self._pending[lane] = _Pending(pending.position, 1, (token,))

    def decoded(self, lane: int, position: int, hidden: Tensor, tokens: tuple[int, ...]) -> None:
        """A round has drawn `tokens` behind positions from `position` on, whose hidden states are the first of these
        [n, H]."""
        self._keep(lane, position, hidden[: len(tokens)], tokens)

    def guess(self, wishes: Sequence[Wish]) -> list[tuple[int, ...]]:
        """Look at what is pending in the lanes of a round, and guess; fewer than wished where nothing is known."""
        made = [self._made[wish.lane] for wish in wishes]
        unmade = [wish for wish, known in zip(wishes, made, strict=True) if known is None or len(known) < wish.drafts]
        fresh = dict(zip((wish.lane for wish in unmade), self._guess(unmade), strict=True))
        for wish in wishes:
            self._pending[wish.lane] = self._made[wish.lane] = None
        return [
            fresh[wish.lane] if wish.lane in fresh else (known or ())[: wish.drafts]
            for wish, known in zip(wishes, made, strict=True)
        ]

    def foresee(self, wishes: Sequence[Wish]) -> list[tuple[int, ...]]:
        """The same ahead of the round that they are for. What is pending stays, in case something else comes of it."""
        guesses = self._guess(wishes)
        for wish, made in zip(wishes, guesses, strict=True):
            self._made[wish.lane] = made
        return guesses

    def _guess(self, wishes: Sequence[Wish]) -> list[tuple[int, ...]]:
        ready = [(wish, pending) for wish in wishes if (pending := self._pending[wish.lane]) is not None]
        guesses: dict[int, list[int]] = {wish.lane: [] for wish in wishes}
        if ready:
            spans = [Span(wish.lane, pending.position, pending.count) for wish, pending in ready]
            tokens = [token for _, pending in ready for token in pending.tokens]
            hidden = torch.cat([self._rows(wish.lane, pending) for wish, pending in ready])
            m = self._predict(spans, self._ids(tokens), hidden)
            ends = torch.tensor([span.count for span in spans]).cumsum(0) - 1
            self._guess_on([wish for wish, _ in ready], m[ends.to(m.device)], guesses)
        return [tuple(guesses[wish.lane]) for wish in wishes]

    def _guess_on(self, wishes: list[Wish], m: Tensor, guesses: dict[int, list[int]]) -> None:
        """Guess from the layer's states [n, H] at the positions in front of the anchors."""
        for number in range(max(wish.drafts for wish in wishes)):
            going = [row for row, wish in enumerate(wishes) if wish.drafts > number]
            wishes, m = [wishes[row] for row in going], m[going]
            if number:
                spans = [Span(wish.lane, wish.position + number - 1, 1) for wish in wishes]
                m = self._predict(spans, self._ids([guesses[wish.lane][-1] for wish in wishes]), m)
            for wish, token in zip(wishes, likeliest(self._weights, m, self._public_ids).tolist(), strict=True):
                guesses[wish.lane].append(token)

    def _predict(self, spans: list[Span], ids: Tensor, hidden: Tensor) -> Tensor:
        batch = round_batch(spans, ids, self._cache.tables)
        return predict(self._config, self._weights, self._cache, batch, hidden)

    def _keep(self, lane: int, position: int, hidden: Tensor, tokens: tuple[int, ...]) -> None:
        assert self._cache.pending is not None
        self._cache.pending[lane, : hidden.shape[0]] = hidden
        self._pending[lane], self._made[lane] = _Pending(position, hidden.shape[0], tokens), None

    def _rows(self, lane: int, pending: _Pending) -> Tensor:
        assert self._cache.pending is not None
        return self._cache.pending[lane, : pending.count]

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(tokens, dtype=torch.int64, device=self._cache.anchors.device)
