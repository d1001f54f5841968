"""Models of random weights without a checkpoint: parameters are made from their names when they are asked for."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.config import FULL_ATTENTION, LINEAR_ATTENTION, MtpConfig, TextConfig
from ninfer.artifact.parameters import Components, logical_parameters

SMALL = TextConfig(
    architectures=("Qwen3_5ForCausalLM",),
    model_type="qwen3_5_text",
    hidden_size=48,
    vocab_size=203,
    layer_types=(LINEAR_ATTENTION, FULL_ATTENTION),
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    rms_norm_eps=1e-6,
    heads=4,
    kv_heads=2,
    head_dim=16,
    rope_theta=1e6,
    partial_rotary_factor=0.5,
    mrope_section=(2, 1, 1),
    gdn_key_heads=2,
    gdn_value_heads=4,
    gdn_key_dim=16,
    gdn_value_dim=8,
    conv_kernel=4,
    intermediate_size=70,
    moe=None,
)
TIED = replace(SMALL, tie_word_embeddings=True)


@dataclass(frozen=True)
class RandomModel:
    """Stands in for a bound artifact; the short head, if there is one, has every third token."""

    text: TextConfig = SMALL
    mtp: MtpConfig | None = None
    proposal_rows: int | None = None

    def token_ids(self) -> NDArray[np.int32]:
        assert self.proposal_rows is not None
        return np.arange(self.proposal_rows, dtype=np.int32) * 3 % self.text.vocab_size

    def values(self, name: str, rows: tuple[int, int] | None = None) -> NDArray[np.float32]:
        components = Components(self.text, mtp=self.mtp, proposal_rows=self.proposal_rows)
        shapes = {p.name: p.shape for p in logical_parameters(components)}
        shape = shapes[name]
        source = np.random.default_rng(zlib.crc32(name.encode()))
        if name.endswith("a_log"):
            whole = np.log(source.uniform(1, 8, shape))
        elif name.endswith("dt_bias"):
            whole = source.uniform(-4, -1, shape)
        elif len(shape) == 1:
            whole = 0.2 * source.standard_normal(shape)
        else:
            whole = source.standard_normal(shape) / math.sqrt(shape[-1])
        chosen = whole if rows is None else whole[rows[0] : rows[1]]
        return np.ascontiguousarray(chosen, dtype=np.float32)
