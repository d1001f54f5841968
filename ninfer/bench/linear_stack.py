"""The linears of one token of the 27B with random weights, laid out as an engine would run them.

Every launch has weights of its own, so that no cache serves two. The mixers are missing. Where time is measured, output
products take columns that stay as they are; where bits are compared, they take a part of the rows that a mixer would,
so that every number depends on the column it began with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear import op
from ninfer.kernels.low_bit_linear.buffers import Columns, Norm, PartialSums, columns_buffer, partial_sums, to_columns
from ninfer.kernels.low_bit_linear.op import Product
from ninfer.kernels.low_bit_linear.pack import LowBitWeight, allocate

EPS = 1e-6
PAIRED = ("gate_up", "mtp_gate_up")


@dataclass(frozen=True, slots=True)
class Shapes:
    """Matrices by kind, each (N, K, bits); kinds with two share a launch. layers: all; every fourth is attention."""

    layers: int
    hidden: int
    mixed: int
    inner: int
    vocabulary: int
    head_bits: int
    head_rows: int

    @property
    def kinds(self) -> dict[str, tuple[tuple[int, int, int], ...]]:
        h, m = self.hidden, self.mixed
        return {
            "gdn": ((2 * m // 3, h, 4), (2 * m, h, 5)),
            "attention": ((m + m // 6, h, 4), (m + m // 6, h, 5)),
            "output": ((h, m, 5),),
            "gate_up": ((2 * self.inner, h, 4),),
            "down": ((h, self.inner, 5),),
            "head": ((self.vocabulary, h, self.head_bits),),
            "mtp_gate_up": ((2 * self.inner, h, 8),),
            "draft_head": ((self.head_rows, h, 4),),
        }

    def order(self) -> Iterator[str]:
        """Kinds of the launches of one token."""
        for layer in range(self.layers):
            yield "attention" if layer % 4 == 3 else "gdn"
            yield from ("output", "gate_up", "down")
        yield "head"


MODELS = {
    "qwen3_6_27b": Shapes(64, 5120, 6144, 17408, 248320, 6, 131072),
    "qwen3_8_27b": Shapes(64, 5120, 6144, 17408, 248320, 8, 131072),
    "tiny": Shapes(4, 256, 384, 512, 1024, 6, 512),
}


def random_weight(
    shape: tuple[int, int, int], device: torch.device, source: torch.Generator, *, paired: bool = False
) -> LowBitWeight:
    """Random codes, and scales of both signs that keep the size of what is multiplied. Written in packed form.

    Random codes have mean -1/2: with scales of one sign, a chain of layers would blow that up.
    """
    rows, columns, bits = shape
    weight = allocate(rows, columns, bits, device, paired=paired)
    step = max(1, (1 << 27) // weight.words[0].numel())
    size = 1 / (columns**0.5 * (4**bits / 12) ** 0.5)
    codes = weight.packing.words - 32
    for begin in range(0, weight.words.shape[0], step):
        part = weight.words[begin : begin + step]
        part.random_(-(2**31), 2**31 - 1, generator=source)
        scales = torch.rand(*part.shape[:2], 64, device=device, generator=source) * 2 - 1
        part[..., codes:] = ((scales + 0.5 * scales.sign()) * size).half().view(torch.int32)
    return weight


class Stack:
    """Weights of all launches, and the buffers for a number of tokens. `programs`: of a launch."""

    def __init__(self, shapes: Shapes, device: torch.device, programs: int, seed: int = 1) -> None:
        self.shapes, self.device, self.programs = shapes, device, programs
        source = torch.Generator(device).manual_seed(seed)
        self.weights = [
            (kind, [random_weight(shape, device, source, paired=kind in PAIRED) for shape in shapes.kinds[kind]])
            for kind in shapes.order()
        ]
        self.extra = {
            kind: [
                [random_weight(shape, device, source, paired=kind in PAIRED) for shape in shapes.kinds[kind]]
                for _ in range(4)
            ]
            for kind in ("mtp_gate_up", "draft_head")
        }
        self.norm_weight = torch.zeros(shapes.hidden, device=device)

    @property
    def nbytes(self) -> int:
        """What one token reads."""
        return sum(weight.nbytes for _, weights in self.weights for weight in weights)

    def of_kind(self, kind: str) -> list[list[LowBitWeight]]:
        return self.extra.get(kind) or [weights for name, weights in self.weights if name == kind]

    def run(self, tokens: int) -> Run:
        return Run(self, tokens)


class Run:
    """Buffers of one width. Every method only launches: it can be captured into a graph."""

    def __init__(self, stack: Stack, tokens: int) -> None:
        shapes, device = stack.shapes, stack.device
        self.stack, self.tokens = stack, tokens
        self.sums: dict[str, tuple[PartialSums, ...]] = {}  # of launches that finish them, which find and leave zeros
        self.left: dict[str, tuple[PartialSums, ...]] = {}  # of launches that leave them behind
        self.rows: dict[str, list[Tensor]] = {}
        for kind, matrices in shapes.kinds.items():
            self.sums[kind] = partial_sums(stack.of_kind(kind)[0], tokens, stack.programs)
            self.left[kind] = partial_sums(stack.of_kind(kind)[0], tokens, stack.programs)
            dtype = torch.float32 if kind in ("head", "draft_head") else torch.bfloat16
            self.rows[kind] = [torch.empty(tokens, rows, dtype=dtype, device=device) for rows, _, _ in matrices]
        self.x = columns_buffer(shapes.hidden, tokens, device, EPS)  # of the mixer
        self.y = columns_buffer(shapes.hidden, tokens, device, EPS)  # of the feed-forward
        self.mixed = columns_buffer(shapes.mixed, tokens, device)
        self.product = columns_buffer(shapes.inner, tokens, device)
        self.start = torch.randn(
            max(32, tokens), shapes.hidden, generator=torch.Generator().manual_seed(7), dtype=torch.float32
        )[:tokens].to(device, torch.bfloat16)
        self.residual = self.start.clone()
        # Zeros would be multiplied with less power, and would hide a wrong product.
        for buffer in (self.x, self.y, self.mixed, self.product):
            to_columns(torch.randn(tokens, buffer.columns, device=device), buffer)

    @property
    def logits(self) -> Tensor:
        return self.rows["head"][0]

    def columns(self, kind: str) -> Columns:
        """What the products of a kind multiply."""
        return {"output": self.mixed, "down": self.product, "gate_up": self.y, "mtp_gate_up": self.y}.get(kind, self.x)

    def multiply(self, kind: str, weights: list[LowBitWeight]) -> None:
        """A product without its end."""
        op.multiply(self.columns(kind), self.tokens, _products(weights, self.left[kind]))

    def fused(self, kind: str, weights: list[LowBitWeight]) -> None:
        """A product with its end in one launch."""
        x, products = self.columns(kind), _products(weights, self.sums[kind])
        if kind in PAIRED:
            op.product_silu_mul(x, self.tokens, products[0], self.product)
        elif kind in ("output", "down"):
            out, cleared = self._norms(kind)
            op.product_residual(x, self.tokens, products[0], self.residual, self.stack.norm_weight, out, cleared)
        else:
            op.product_rows(x, self.tokens, products, self.rows[kind])

    def separate(self, kind: str, weights: list[LowBitWeight]) -> None:
        """A product, and its end in launches of their own."""
        self.multiply(kind, weights)
        x, sums = self.columns(kind), self.left[kind]
        if kind in PAIRED:
            op.finish_silu_mul(sums[0], self.tokens, x.norm, self.product)
        elif kind in ("output", "down"):
            out, cleared = self._norms(kind)
            op.finish_residual(sums[0], self.residual, self.stack.norm_weight, out, cleared)
        else:
            for part, rows in zip(sums, self.rows[kind], strict=True):
                op.finish_rows(part, self.tokens, x.norm, rows)

    def _norms(self, kind: str) -> tuple[Columns, Norm]:
        """The columns that a product's residual goes to, and the norm it clears."""
        out, other = (self.y, self.x) if kind == "output" else (self.x, self.y)
        assert other.norm is not None
        return out, other.norm

    def products(self) -> None:
        """The launches of one token without what is between them."""
        for kind, weights in self.stack.weights:
            self.multiply(kind, weights)

    def one_kind(self, kind: str, work: Callable[[str, list[LowBitWeight]], None]) -> int:
        """One of the launches above for all products of a kind, one after another; returns how many."""
        launches = self.stack.of_kind(kind)
        repeats = 4 if len(launches) == 1 else 1
        for weights in launches * repeats:
            work(kind, weights)
        return len(launches) * repeats

    def token(self, *, fused: bool, mixed: bool = False) -> tuple[Tensor, Tensor]:
        """One token; returns the value and the row of each token's largest logit. mixed: output products take a part of
        the rows of the layer's first launch."""
        self.residual.copy_(self.start)
        assert self.y.norm is not None
        op.first_norm(self.residual, self.stack.norm_weight, self.x, self.y.norm)
        for kind, weights in self.stack.weights:
            (self.fused if fused else self.separate)(kind, weights)
            if mixed and kind in ("gdn", "attention"):
                to_columns(self.rows[kind][1][:, : self.mixed.columns], self.mixed)
        return op.candidates(self.logits, self.stack.shapes.vocabulary, 1)


def _products(weights: list[LowBitWeight], sums: tuple[PartialSums, ...]) -> list[Product]:
    return [Product(weight, part) for weight, part in zip(weights, sums, strict=True)]
