"""What the hardware allows: bytes that a decode round must move and operations that a prompt must take.

A decoded token reads every matrix once, reads and writes the recurrent state of its lane, and reads the keys and values
it sees. Tokens of other lanes share the matrices and nothing else. A prompt multiplies every matrix with every token,
and every query with the keys before it. All else (norms, convolutions, the recurrence's own products, activations) is
not counted: it belongs to the distance from the floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.artifact.config import FULL_ATTENTION, LINEAR_ATTENTION, TextConfig
from ninfer.errors import StartupError
from ninfer.step import PAGE_TOKENS

SCALE_GROUP = 64  # values of an int8 cache that share one fp16 scale (kv-and-state spec, 3.1)
_KV_BYTES = {"bf16": 2.0, "fp32": 4.0, "int8": 1.0 + 2.0 / SCALE_GROUP}


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix [rows, columns] of one layer's products, and how many layers have it."""

    name: str
    rows: int
    columns: int
    layers: int

    @property
    def parameters(self) -> int:
        return self.rows * self.columns


def products(config: TextConfig) -> list[Product]:
    """The products of a token as a chunk runs them, without the head. Raises StartupError for experts."""
    inner, hidden = config.intermediate_size, config.hidden_size
    if inner is None:
        raise StartupError("a mixture-of-experts model cannot be measured yet")
    attention, recurrent = (config.layer_types.count(kind) for kind in (FULL_ATTENTION, LINEAR_ATTENTION))
    found = []
    if attention:
        rows = 2 * (config.query_width + config.kv_width)
        found.append(Product("attention in", rows, hidden, attention))
        found.append(Product("attention out", hidden, config.query_width, attention))
    if recurrent:
        rows = 2 * (config.gdn_key_width + config.gdn_value_width + config.gdn_value_heads)
        found.append(Product("gdn in", rows, hidden, recurrent))
        found.append(Product("gdn out", hidden, config.gdn_value_width, recurrent))
    found.append(Product("gate_up", 2 * inner, hidden, config.num_layers))
    found.append(Product("down", hidden, inner, config.num_layers))
    return found


def state_bytes(config: TextConfig) -> int:
    """Bytes of one lane's recurrent state, fp32."""
    layers = config.layer_types.count(LINEAR_ATTENTION)
    return 4 * layers * config.gdn_value_heads * config.gdn_value_dim * config.gdn_key_dim


def kv_token_bytes(config: TextConfig, kv_dtype: str) -> float:
    """Bytes of one position's keys and values over all layers, scales included."""
    return 2 * config.layer_types.count(FULL_ATTENTION) * config.kv_width * _KV_BYTES[kv_dtype]


@dataclass(frozen=True, slots=True)
class RoundBytes:
    """Bytes of one decode round.

    floor    every matrix once; per lane one read and one write of the state, and the visible keys and values
    design   the same with the state written once in 64 tokens, as the block form allows
    """

    floor: float
    design: float


def round_bytes(config: TextConfig, kv_dtype: str, weight_bytes: int, contexts: Sequence[float]) -> RoundBytes:
    """One round of a lane per entry of `contexts`, which says how many positions it sees."""
    shared = weight_bytes + kv_token_bytes(config, kv_dtype) * sum(contexts)
    state = len(contexts) * state_bytes(config)
    return RoundBytes(shared + 2 * state, shared + state * (1 + 1 / PAGE_TOKENS))


def prefill_flop(config: TextConfig, tokens: int, begin: int = 0) -> float:
    """Operations of reading `tokens` prompt tokens from position `begin` on, the head for the last of them."""
    linear = 2.0 * tokens * sum(product.layers * product.parameters for product in products(config))
    pairs = tokens * begin + tokens * (tokens + 1) / 2
    attention = 4.0 * config.query_width * pairs * config.layer_types.count(FULL_ATTENTION)
    return linear + attention + 2.0 * config.vocab_size * config.hidden_size
