"""The tiny random-weight artifact for tests and measurements: its answers are noise, its format is real."""

from __future__ import annotations

from pathlib import Path

from ninfer.artifact.config import (
    DENSE_ARCHITECTURE,
    FULL_ATTENTION,
    LINEAR_ATTENTION,
    MODEL_TYPES,
    MTP_ARCHITECTURES,
    MtpConfig,
    TextConfig,
    float32,
)
from ninfer.artifact.formats import up
from ninfer.artifact.frontend import small_frontend, smallest_public_tokens
from ninfer.artifact.parameters import Components
from ninfer.artifact.synth import synthesise

TINY_NAME = "ninfer-tiny-random"


def tiny_components() -> Components:
    """Three GDN layers and one attention layer of width 128, and an MTP layer."""
    text = TextConfig(
        architectures=(DENSE_ARCHITECTURE,),
        model_type=MODEL_TYPES[DENSE_ARCHITECTURE],
        hidden_size=128,
        # One row more than there are tokens: reserved rows exist in every real model and must never be emitted.
        vocab_size=up(smallest_public_tokens() + 1, 64),
        layer_types=(*(LINEAR_ATTENTION,) * 3, FULL_ATTENTION),
        max_position_embeddings=262144,
        tie_word_embeddings=False,
        rms_norm_eps=float32(1e-6),
        heads=4,
        kv_heads=2,
        head_dim=64,
        rope_theta=10000000.0,
        partial_rotary_factor=0.25,
        mrope_section=(3, 3, 2),
        gdn_key_heads=2,
        gdn_value_heads=4,
        gdn_key_dim=32,
        gdn_value_dim=32,
        conv_kernel=4,
        intermediate_size=384,
        moe=None,
    )
    return Components(text=text, mtp=MtpConfig(MTP_ARCHITECTURES[DENSE_ARCHITECTURE]))


def build_tiny(path: Path, seed: int = 0) -> None:
    """Write the tiny artifact to `path`; the same seed gives the same bytes. Raises ArtifactError OUTPUT_EXISTS."""
    synthesise(path, tiny_components(), "generic_int", small_frontend(), seed=seed, name=TINY_NAME)
