"""Decode rounds with guesses on a GPU: verify all of them at once, keep those that are right (speculation spec, 3.5).

A round of B lanes with up to D guesses each is two sequences of launches, captured like a plain one. The first, only if
there is a drafter:

    1. Its layer looks at the positions of each lane's last step, now that the tokens behind them are known.
    2. It guesses D tokens one after the other.

And the second, in which guesses that the host brought along take the places of these:

    3. The decoder runs the anchor and the guesses of every lane as consecutive columns.
    4. Tokens are drawn column by column for as long as they are the guessed ones.
    5. The hidden states of the columns wait for the next round.

Where the host has to know the guesses, they are made ahead: behind a round the first sequence of the next one follows,
which finds on the device what it needs to know of the round (:meth:`DraftRound.turn`).

What is a guess's worth changes no token. Columns behind those that a lane has use for are computed and forgotten; what
they write lies behind the lane's frontier, or in a page that belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.artifact.config import TextConfig
from ninfer.kernels.embedding.stored import gather
from ninfer.kernels.low_bit_linear.buffers import Columns, columns_buffer
from ninfer.kernels.low_bit_linear.op import (
    candidates,
    first_norm,
    product_residual,
    product_rows,
    product_silu_mul,
)
from ninfer.kernels.paged_attention.op import attention_round
from ninfer.kernels.rmsnorm.added import add_offset_rmsnorm
from ninfer.kernels.rmsnorm.joined import joined_offset_rmsnorm
from ninfer.kernels.rotary.columns import rotary_columns
from ninfer.kernels.sampler.verify import verify
from ninfer.model.device_cache import DeviceCache
from ninfer.model.low_bit_weights import AttentionMatrices, DrafterMatrices, TextMatrices
from ninfer.model.rounds import MAX_ROWS, MAX_TOKENS, Round, RoundShared

MAX_DRAFTS = 15


def widest_window(draft_tokens: int, lanes: int) -> int:
    """Guesses per lane that a round of so many lanes has room for, if `draft_tokens` are wished."""
    return min(draft_tokens, MAX_TOKENS // lanes - 1)


@dataclass(frozen=True, slots=True)
class LaneDrafts:
    """What a round has to know of one lane.

    lane, position   of the anchor
    tokens           behind the `len(tokens)` positions before the anchor's, which the drafter has not seen; the last is
                     the anchor
    live             guesses that count
    copied           guesses to take instead of the drafter's, or None
    uniforms         for drawing behind the anchor and each guess
    """

    lane: int
    position: int
    tokens: tuple[int, ...]
    live: int
    copied: tuple[int, ...] | None
    uniforms: tuple[float, ...]


_SECTIONS = (
    ("ids", MAX_TOKENS), ("seen_ids", MAX_TOKENS), ("seen_rows", MAX_TOKENS), ("kept_rows", MAX_TOKENS),
    ("uniforms", MAX_TOKENS), ("seen_first", MAX_ROWS), ("seen_last", MAX_ROWS), ("live", MAX_ROWS),
    ("guess_positions", MAX_DRAFTS * MAX_ROWS),
)  # fmt: skip
INPUT_WORDS = sum(size for _, size in _SECTIONS)


class DraftInputs:
    """Everything of :class:`LaneDrafts`, in one piece of memory that one copy fills. Sections are int32, flat:

    ids              [B (1 + D)] anchors and copied guesses, -1 where the drafter's guess goes
    seen_ids         [B A] tokens of the positions that the drafter looks at, A per lane
    seen_rows        [B A] their hidden states in the pending ones [C A, H]
    kept_rows        [B (1 + D)] where the hidden states of the columns go
    uniforms         [B (1 + D)] fp32
    seen_first       [B] first of these positions
    seen_last        [B] row of the last of them among B A
    live             [B]
    guess_positions  [15, 8] position at which guess j + 2 is made, of each lane
    """

    def __init__(self, storage: Tensor) -> None:
        self.storage = storage
        at = 0
        self._sections: dict[str, Tensor] = {}
        for name, size in _SECTIONS:
            self._sections[name] = storage[at : at + size]
            at += size

    def __getitem__(self, name: str) -> Tensor:
        return self._sections[name]

    def fill(self, lanes: Sequence[LaneDrafts], drafts: int, seen: int) -> None:
        """Write what a round of `drafts` guesses and `seen` pending positions per lane needs; host memory only."""
        ids: list[int] = []
        seen_ids: list[int] = []
        seen_rows: list[int] = []
        kept_rows: list[int] = []
        uniforms: list[float] = []
        for row in lanes:
            anchor, count = row.tokens[-1], len(row.tokens)
            guesses = (-1,) * drafts if row.copied is None else (*row.copied, *(anchor,) * drafts)[:drafts]
            ids += [anchor, *guesses]
            seen_ids += [*row.tokens, *[anchor] * (seen - count)]
            seen_rows += [row.lane * seen + min(at, count - 1) for at in range(seen)]
            kept_rows += [row.lane * seen + at for at in range(1 + drafts)]
            uniforms += [*row.uniforms, *[0.0] * (1 + drafts - len(row.uniforms))]
        for name, values in (
            ("ids", ids), ("seen_ids", seen_ids), ("seen_rows", seen_rows), ("kept_rows", kept_rows),
            ("seen_first", [row.position - len(row.tokens) for row in lanes]),
            ("seen_last", [at * seen + len(row.tokens) - 1 for at, row in enumerate(lanes)]),
            ("live", [row.live for row in lanes]),
        ):  # fmt: skip
            self[name][: len(values)] = torch.tensor(values, dtype=torch.int32)
        self["uniforms"].view(torch.float32)[: len(uniforms)] = torch.tensor(uniforms)
        positions = torch.tensor([row.position for row in lanes], dtype=torch.int32)
        table = self["guess_positions"].view(MAX_DRAFTS, MAX_ROWS)
        table[:, : len(lanes)] = positions + torch.arange(MAX_DRAFTS, dtype=torch.int32)[:, None]


@dataclass(frozen=True, slots=True)
class DraftShared:
    """What rounds with a drafter share beside :class:`RoundShared`, for up to T tokens.

    embedded, residual, hidden  [T, H] bf16: of the drafter's layer
    one, state       [B, H] bf16: its residual and its result at the positions in front of the guesses
    joined           columns of 2 H values, by the number of tokens that they have room for
    guesses          [B (1 + D)] int32, of the last round
    ids              [B (1 + D)] int32: what is verified
    results          [B, 2 + 1 + D] int32, see `verify`
    """

    inputs: DraftInputs
    embedded: Tensor
    residual: Tensor
    hidden: Tensor
    one: Tensor
    state: Tensor
    joined: dict[int, Columns]
    guesses: Tensor
    ids: Tensor
    results: Tensor


def draft_shared(config: TextConfig, shared: RoundShared, lanes: int, drafts: int, device: torch.device) -> DraftShared:
    """Buffers for rounds of up to `lanes` lanes with up to `drafts` guesses each."""
    tokens, hidden = lanes * (1 + drafts), config.hidden_size

    def rows(count: int) -> Tensor:
        return torch.zeros(count, hidden, dtype=torch.bfloat16, device=device)

    return DraftShared(
        inputs=DraftInputs(torch.zeros(INPUT_WORDS, dtype=torch.int32, device=device)),
        embedded=rows(tokens),
        residual=rows(tokens),
        hidden=rows(tokens),
        one=rows(lanes),
        state=rows(lanes),
        joined={size: columns_buffer(2 * hidden, size, device) for size in shared.columns},
        guesses=torch.zeros(tokens, dtype=torch.int32, device=device),
        ids=torch.zeros(tokens, dtype=torch.int32, device=device),
        results=torch.zeros(lanes, 3 + drafts, dtype=torch.int32, device=device),
    )


class DraftRound:
    """A round of exactly `rows` lanes with `drafts` guesses each, or none; `widest` is the largest number there is."""

    def __init__(
        self,
        config: TextConfig,
        weights: TextMatrices,
        cache: DeviceCache,
        shared: RoundShared,
        drafting: DraftShared,
        public_ids: int,
        rows: int,
        drafts: int,
        widest: int,
    ) -> None:
        self._config, self._weights, self._cache = config, weights, cache
        self._drafter = weights.drafter
        self._shared, self._drafting, self._public_ids = shared, drafting, public_ids
        self.rows, self.drafts = rows, drafts
        self._seen = 1 + widest
        self.verified = Round(config, weights, cache, shared, public_ids, rows, 1 + drafts)
        self.tokens = self.verified.tokens
        self.lanes = shared.inputs.lanes[:rows]
        self.results = drafting.results

    def launch(self) -> None:
        """Everything from the pending hidden states to the results."""
        self.guess()
        self.verify()

    def turn(self) -> None:
        """Turn the results of a round of these lanes into what the drafter is told of the next one."""
        drafting, rows, seen = self._drafting, self.rows, self._seen
        inputs, results, positions = drafting.inputs, drafting.results[:rows], self._shared.inputs.positions[:rows]
        # Numbers that mean nothing, as behind a fault, must not be addresses.
        last = results[:, 0].clamp(0, seen - 1)
        places = torch.arange(seen, device=results.device).minimum(last[:, None])
        tokens = results[:, 2 : 2 + seen].clamp(0, self._public_ids - 1)
        inputs["seen_ids"][: rows * seen].copy_(tokens.gather(1, places).view(-1))
        inputs["seen_rows"][: rows * seen].copy_((self.lanes[:, None] * seen + places).view(-1))
        inputs["seen_first"][:rows].copy_(positions)
        inputs["seen_last"][:rows].copy_(torch.arange(0, rows * seen, seen, device=results.device) + last)
        numbers = torch.arange(1, 1 + MAX_DRAFTS, device=results.device)
        table = inputs["guess_positions"].view(MAX_DRAFTS, MAX_ROWS)
        table[:, :rows].copy_((positions + last)[None, :] + numbers[:, None])

    def guess(self) -> None:
        """The drafter's part; nothing if there is no drafter."""
        drafter = self._drafter
        if drafter is not None:
            self._look(drafter)
            if self.drafts:
                self._guess(drafter)

    def verify(self) -> None:
        """From the guesses to the results, and what the drafter will look at."""
        drafter, drafting, rows = self._drafter, self._drafting, self.rows
        ids = drafting.ids[: self.tokens]
        host, mine = drafting.inputs["ids"][: self.tokens], drafting.guesses[: self.tokens]
        torch.where(host >= 0, host, mine, out=ids)
        self.verified.launch(ids)
        verify(
            self.verified.logits, self._public_ids, self.lanes, 1 + self.drafts, ids, drafting.inputs["live"][:rows],
            drafting.inputs["uniforms"].view(torch.float32)[: self.tokens], self._cache.drawing, self._shared.draw,
            self.results[:rows],
        )  # fmt: skip
        if drafter is not None:
            hidden = drafting.hidden[: self.tokens]
            final, eps = self._weights.final_norm, self._config.rms_norm_eps
            add_offset_rmsnorm(self.verified.residual, None, final, eps, hidden)
            self._pending.index_copy_(0, drafting.inputs["kept_rows"][: self.tokens].long(), hidden)

    @property
    def _pending(self) -> Tensor:
        assert self._cache.pending is not None
        return self._cache.pending.view(-1, self._config.hidden_size)

    def _look(self, drafter: DrafterMatrices) -> None:
        """The drafter's layer at the positions of the last steps."""
        drafting, tokens = self._drafting, self.rows * self._seen
        hidden = drafting.hidden[:tokens]
        torch.index_select(self._pending, 0, drafting.inputs["seen_rows"][:tokens], out=hidden)
        ids, first = drafting.inputs["seen_ids"][:tokens], drafting.inputs["seen_first"][: self.rows]
        self._layer(drafter, ids, hidden, first, self._seen, keys_only=not self.drafts)

    def _guess(self, drafter: DrafterMatrices) -> None:
        drafting, rows = self._drafting, self.rows
        eps = self._config.rms_norm_eps
        one, state = drafting.one[:rows], drafting.state[:rows]
        torch.index_select(drafting.residual, 0, drafting.inputs["seen_last"][:rows], out=one)
        columns = self._shared.columns_for(rows)
        assert columns.y.norm is not None
        first_norm(one, drafter.final_norm, columns.x, columns.y.norm)
        table = drafting.guesses[: self.tokens].view(rows, 1 + self.drafts)
        positions = drafting.inputs["guess_positions"].view(MAX_DRAFTS, MAX_ROWS)
        for number in range(self.drafts):
            if number:
                add_offset_rmsnorm(one, None, drafter.final_norm, eps, state)
                ids = table[:, number].contiguous()
                one = self._layer(drafter, ids, state, positions[number - 1, :rows], 1)
            table[:, number + 1].copy_(self._likeliest(drafter, columns.x))

    def _likeliest(self, drafter: DrafterMatrices, x: Columns) -> Tensor:
        """[B] int32: the likeliest token by each column, which has a norm."""
        rows = self.rows
        logits = self._shared.logits.view(-1)[: rows * drafter.head.rows].view(rows, -1)
        product_rows(x, rows, self._shared.sums.products(drafter.head), [logits])
        legal = self._public_ids if drafter.head_ids is None else drafter.head_ids.shape[0]
        _, best = candidates(logits, legal, 1)
        best = best.view(rows).clamp_(0, legal - 1)  # what is not a number must not be an address
        return best if drafter.head_ids is None else drafter.head_ids.index_select(0, best)

    def _layer(
        self,
        drafter: DrafterMatrices,
        ids: Tensor,
        hidden: Tensor,
        first: Tensor,
        per_lane: int,
        *,
        keys_only: bool = False,
    ) -> Tensor:
        """The drafter's layer over `per_lane` columns of each lane from positions `first` on; with `keys_only` for its
        keys and values alone.

        returns  [T, H]: its residual; the columns x of that many tokens hold it times the final norm's weight
        """
        shared, drafting, config = self._shared, self._drafting, self._config
        tokens, layer, eps = ids.shape[0], drafter.layer, config.rms_norm_eps
        mixer = layer.mixer
        assert isinstance(mixer, AttentionMatrices)
        columns, sums = shared.columns_for(tokens), shared.sums
        x, y, mixed = columns.x, columns.y, columns.mixed[mixer.out.columns]
        assert x.norm is not None
        assert y.norm is not None
        assert shared.attention is not None
        embedded, residual = drafting.embedded[:tokens], drafting.residual[:tokens]
        joined = next(buffer for buffer in drafting.joined.values() if buffer.capacity >= tokens)
        cos, sin = shared.cos[:tokens], shared.sin[:tokens]
        gather(ids, self._weights.embedding, embedded)
        joined_offset_rmsnorm(embedded, hidden, drafter.embedding_norm, drafter.hidden_norm, eps, joined)
        rotary_columns(first, per_lane, shared.frequencies, cos, sin)
        residual.zero_()
        x.norm.squares.zero_()
        (join,) = sums.products(drafter.join)
        product_residual(joined, tokens, join, residual, layer.input_norm, x, y.norm)
        queries = shared.first[: tokens * mixer.first.rows].view(tokens, -1)
        values = shared.second[: tokens * mixer.second.rows].view(tokens, -1)
        product_rows(x, tokens, sums.products(mixer.first, mixer.second), [queries, values])
        attention_round(
            queries, values, mixer.query_norm, mixer.key_norm, eps, cos, sin, self._cache.pools[-1], self._cache.tables,
            self.lanes, first, per_lane, shared.attention, mixed,
        )  # fmt: skip
        if keys_only:
            return residual
        (out,) = sums.products(mixer.out)
        product_residual(mixed, tokens, out, residual, layer.post_norm, y, x.norm)
        (gate_up,) = sums.products(layer.gate_up)
        product_silu_mul(y, tokens, gate_up, columns.inner)
        (down,) = sums.products(layer.down)
        product_residual(columns.inner, tokens, down, residual, drafter.final_norm, x, y.norm)
        return residual
