"""Which way the products of a prefill chunk go: decided here and nowhere else.

The *library* multiplies a matrix that was widened to bf16 scratch. *In registers*, weights are widened between memory
and the matrix unit (`op.product_chunk`), which is faster while the widening outweighs the product.

Both round weights and result alike and sum in fp32, but a library need not sum in our order. Where it has been measured
on a GPU that the bits are the same, the faster way is taken by itself; elsewhere a token's bits would depend on the
length of the chunk that it came in (design, section 3), so that somebody has to ask for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from ninfer.kernels.low_bit_linear.variants import CHUNK_TOKENS

_FOLDER = Path(__file__).with_name("tuned")
# Only matrices with a multiple of these are multiplied in registers (`op.product_chunk`).
COLUMNS, ROWS = 64, 8


class Route(Enum):
    LIBRARY = "library"
    IN_REGISTER = "in-register"


class Choice(Enum):
    """What the operator wants."""

    AUTO = "auto"  # in registers where that is faster and has the library's bits
    IN_REGISTER = "in-register"  # in registers where that is faster: bits may depend on the length of chunks
    LIBRARY = "library"  # never in registers


@dataclass(frozen=True, slots=True)
class Tuned:
    """Measurements of a GPU.

    same_bits        whether a product in registers has the library's bits at every length
    longest_tokens   pairs (rows, tokens), rows ascending from 0: a product with at least so many rows is faster in
                     registers for chunks of up to so many tokens
    """

    same_bits: bool
    longest_tokens: tuple[tuple[int, int], ...]


# For a GPU without an entry. The library's way writes and reads 16 bits for every weight, four times what the packed
# ones take; with this few tokens little else counts.
DEFAULT = Tuned(same_bits=False, longest_tokens=((0, 64),))


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator wants of a GPU about which this is known."""

    choice: Choice = Choice.AUTO
    tuned: Tuned = DEFAULT

    @property
    def in_registers(self) -> bool:
        """Whether any product may go in registers."""
        return self.choice is Choice.IN_REGISTER or (self.choice is Choice.AUTO and self.tuned.same_bits)


def route(tokens: int, rows: int, columns: int, policy: Policy) -> Route:
    """The way of one product [tokens, columns] x [columns, rows]; rows of all matrices that share it."""
    longest = max(pair for pair in policy.tuned.longest_tokens if pair[0] <= rows)[1]
    fits = columns % COLUMNS == 0 and rows % ROWS == 0
    return Route.IN_REGISTER if policy.in_registers and fits and tokens <= longest else Route.LIBRARY


def warm_up_lengths(policy: Policy) -> tuple[int, ...]:
    """Lengths of chunks that between them launch every binary which a chunk of any length does."""
    if not policy.in_registers:
        return ()
    reached = {tokens for _, tokens in policy.tuned.longest_tokens if tokens > 0}
    return tuple(sorted(reached | {tokens for tokens in CHUNK_TOKENS if tokens < max(reached, default=0)}))


def file_name(gpu: str) -> str:
    """Of the entry of a GPU, from the name that its driver gives it: "NVIDIA H200" is nvidia-h200.json."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".json"


@cache
def tuned_for(gpu: str, folder: Path = _FOLDER) -> Tuned | None:
    """The entry of a GPU, or None. Raises ValueError if the file is not what it should be."""
    path = folder / file_name(gpu)
    return _entry(json.loads(path.read_text())["chunk_products"]) if path.exists() else None


def to_json(tuned: Tuned) -> dict[str, Any]:
    """The entry as it lies in a file, under the name `chunk_products`."""
    return {"same_bits": tuned.same_bits, "longest_tokens": [list(pair) for pair in tuned.longest_tokens]}


def _entry(value: Mapping[str, Any]) -> Tuned:
    pairs = tuple((int(rows), int(tokens)) for rows, tokens in value["longest_tokens"])
    rows = [first for first, _ in pairs]
    if not isinstance(value["same_bits"], bool) or rows[:1] != [0] or sorted(set(rows)) != rows:
        raise ValueError(f"not an entry for the products of chunks: {dict(value)}")
    return Tuned(value["same_bits"], pairs)
