"""Dimensions of the embedded model, and its config file."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ninfer.artifact.config import interleaved_sections


@dataclass(frozen=True, slots=True)
class Dimensions:
    """A dense member of the family (model spec 2.3); names as in its config."""

    vocabulary: int = 8192
    hidden: int = 384
    layers: int = 8
    interval: int = 4
    intermediate: int = 1280
    heads: int = 4
    kv_heads: int = 1
    head_dim: int = 256
    key_heads: int = 4
    value_heads: int = 4
    gdn_dim: int = 128
    taps: int = 4
    rope_theta: float = 1e6
    max_positions: int = 32768
    eps: float = 1e-6

    @property
    def rotary(self) -> int:
        """Channels of a head that are rotated: a quarter."""
        return self.head_dim // 4

    @property
    def conv_channels(self) -> int:
        return (2 * self.key_heads + self.value_heads) * self.gdn_dim

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.interval == 0

    def config(self) -> dict[str, object]:
        """The members of config.json."""
        kinds = ["full_attention" if self.is_attention(i) else "linear_attention" for i in range(self.layers)]
        pairs = self.rotary // 2
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "layer_types": kinds,
            "full_attention_interval": self.interval,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "attn_output_gate": True,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads,
            "linear_key_head_dim": self.gdn_dim,
            "linear_value_head_dim": self.gdn_dim,
            "linear_conv_kernel_dim": self.taps,
            "hidden_act": "silu",
            "rms_norm_eps": self.eps,
            "initializer_range": 0.02,
            "max_position_embeddings": self.max_positions,
            "partial_rotary_factor": 0.25,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": True,
                "mrope_section": list(interleaved_sections(pairs, (pairs, pairs, pairs))),
            },
            "tie_word_embeddings": True,
            "mamba_ssm_dtype": "float32",
            "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": self.vocabulary - 33,
            "use_cache": True,
            "dtype": "bfloat16",
        }

    def config_json(self) -> str:
        return json.dumps(self.config(), indent=2)
