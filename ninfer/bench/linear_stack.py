"""The linears of one token of the 27B with random weights, laid out as an engine would run them.

Every launch has weights of its own, so that no cache serves two. The mixers are missing: a GDN layer's output product
takes silu(value) * z, an attention layer's takes what the layer before it took. That keeps every number dependent on
the column it began with, which is what the equality check needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear import op
from ninfer.kernels.low_bit_linear.buffers import Columns, PartialSums, columns_buffer, partial_sums, to_columns
from ninfer.kernels.low_bit_linear.op import Product
from ninfer.kernels.low_bit_linear.pack import LowBitWeight, allocate

EPS = 1e-6


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


def random_weight(shape: tuple[int, int, int], device: torch.device, source: torch.Generator) -> LowBitWeight:
    """Random codes, and scales of both signs that keep the size of what is multiplied. Written in packed form.

    Random codes have mean -1/2: with scales of one sign, a chain of layers would blow that up.
    """
    rows, columns, bits = shape
    weight = allocate(rows, columns, bits, device)
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
            (kind, [random_weight(shape, device, source) for shape in shapes.kinds[kind]]) for kind in shapes.order()
        ]
        self.extra = {
            kind: [[random_weight(shape, device, source) for shape in shapes.kinds[kind]] for _ in range(4)]
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
        self.sums: dict[str, tuple[PartialSums, ...]] = {}
        for kind in shapes.kinds:
            self.sums[kind] = partial_sums(stack.of_kind(kind)[0], tokens, stack.programs)
        self.x = columns_buffer(shapes.hidden, tokens, device, EPS)
        self.mixed = columns_buffer(shapes.mixed, tokens, device)
        self.product = columns_buffer(shapes.inner, tokens, device)
        self.start = torch.randn(
            max(32, tokens), shapes.hidden, generator=torch.Generator().manual_seed(7), dtype=torch.float32
        )[:tokens].to(device, torch.bfloat16)
        self.residual = self.start.clone()
        self.rows = torch.empty(tokens, shapes.kinds["gdn"][0][0], dtype=torch.bfloat16, device=device)
        widest = max(shapes.kinds["attention"][0][0], shapes.kinds["attention"][1][0])
        self.attention_rows = torch.empty(tokens, widest, dtype=torch.bfloat16, device=device)
        self.logits = torch.empty(tokens, shapes.vocabulary, device=device)
        # Zeros would be multiplied with less power, and would hide a wrong product.
        for buffer in (self.x, self.mixed, self.product):
            to_columns(torch.randn(tokens, buffer.columns, device=device), buffer)

    def columns(self, kind: str) -> Columns:
        """What the products of a kind multiply."""
        return {"output": self.mixed, "down": self.product}.get(kind, self.x)

    def multiply(self, kind: str, weights: list[LowBitWeight]) -> None:
        products = [Product(weight, sums) for weight, sums in zip(weights, self.sums[kind], strict=True)]
        op.multiply(self.columns(kind), self.tokens, products)

    def products(self) -> None:
        """The launches of one token without what is between them."""
        for kind, weights in self.stack.weights:
            self.multiply(kind, weights)

    def one_kind(self, kind: str) -> int:
        """All products of a kind, one after another; returns how many."""
        launches = self.stack.of_kind(kind)
        repeats = 4 if len(launches) == 1 else 1
        for weights in launches * repeats:
            self.multiply(kind, weights)
        return len(launches) * repeats

    def token(self, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Products and finishing of one token; returns the value and the row of each token's largest logit."""
        self.residual.copy_(self.start)
        op.finish_residual(None, self.residual, self.stack.norm_weight, self.x)
        for kind, weights in self.stack.weights:
            self.multiply(kind, weights)
            first = self.sums[kind][0]
            if kind == "gdn":
                op.finish_rows(first, self.tokens, self.x.norm, self.rows)
                op.finish_silu_mul(self.sums[kind][1], self.tokens, self.x.norm, self.mixed)
            elif kind == "attention":
                for sums in self.sums[kind]:
                    op.finish_rows(sums, self.tokens, self.x.norm, self.attention_rows)
            elif kind == "gate_up":
                op.finish_silu_mul(first, self.tokens, self.x.norm, self.product)
            elif kind in ("output", "down"):
                op.finish_residual(first, self.residual, self.stack.norm_weight, self.x)
        return op.finish_head(self.sums["head"][0], self.tokens, self.x.norm, self.stack.shapes.vocabulary, 1, logits)
