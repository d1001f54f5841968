"""Components of the registered models (artifact spec, sections 4.6 and 9.1), by target key."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ninfer.artifact.config import (
    DENSE_ARCHITECTURE,
    FULL_ATTENTION,
    LINEAR_ATTENTION,
    MODEL_TYPES,
    MOE_ARCHITECTURE,
    MTP_ARCHITECTURES,
    SLIDING_ATTENTION,
    VISION_MODEL_TYPES,
    DraftConfig,
    MoeConfig,
    MtpConfig,
    TextConfig,
    VisionConfig,
    float32,
)
from ninfer.artifact.parameters import Components

PUBLIC_TOKENS = 248077
PROPOSAL_ROWS = 131072
_EPS = float32(1e-6)
_CONTEXT = 262144


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """A published model: its public name, and everything its artifact may hold."""

    name: str
    components: Components


_TEXT_27B = TextConfig(
    architectures=(DENSE_ARCHITECTURE,),
    model_type=MODEL_TYPES[DENSE_ARCHITECTURE],
    hidden_size=5120,
    vocab_size=248320,
    layer_types=tuple(FULL_ATTENTION if i % 4 == 3 else LINEAR_ATTENTION for i in range(64)),
    max_position_embeddings=_CONTEXT,
    tie_word_embeddings=False,
    rms_norm_eps=_EPS,
    heads=24,
    kv_heads=4,
    head_dim=256,
    rope_theta=10000000.0,
    partial_rotary_factor=0.25,
    mrope_section=(11, 11, 10),
    gdn_key_heads=16,
    gdn_value_heads=48,
    gdn_key_dim=128,
    gdn_value_dim=128,
    conv_kernel=4,
    intermediate_size=17408,
    moe=None,
)
_TEXT_35B = dataclasses.replace(
    _TEXT_27B,
    architectures=(MOE_ARCHITECTURE,),
    model_type=MODEL_TYPES[MOE_ARCHITECTURE],
    hidden_size=2048,
    layer_types=_TEXT_27B.layer_types[:40],
    heads=16,
    kv_heads=2,
    gdn_value_heads=32,
    intermediate_size=None,
    moe=MoeConfig(num_experts=256, experts_per_token=8, expert_intermediate_size=512, shared_intermediate_size=512),
)


def _vision(architecture: str) -> VisionConfig:
    return VisionConfig(
        model_type=VISION_MODEL_TYPES[architecture],
        depth=27,
        hidden_size=1152,
        intermediate_size=4304,
        num_heads=16,
        patch_size=16,
        temporal_patch_size=2,
        spatial_merge_size=2,
        num_position_embeddings=2304,
    )


_DFLASH = DraftConfig(
    architecture="DFlashDraftModel",
    model_type="qwen3",
    intermediate_size=6144,
    heads=32,
    kv_heads=8,
    head_dim=128,
    layer_types=(*(SLIDING_ATTENTION,) * 5, FULL_ATTENTION),
    rms_norm_eps=_EPS,
    rope_theta=10000000.0,
    max_position_embeddings=_CONTEXT,
    sliding_window=4096,
    target_layer_ids=(1, 6, 11, 16, 22, 27, 32, 37),
    mask_token_id=248077,
    conv_kernel_size=None,
    conv_group_size=None,
    selector_rank=None,
    selector_top_k=None,
)
_DFLASH2 = dataclasses.replace(
    _DFLASH,
    architecture="DFlash2DraftModel",
    intermediate_size=17408,
    layer_types=(SLIDING_ATTENTION,) * 5,
    sliding_window=2048,
    target_layer_ids=(5, 19, 33, 47, 61),
    mask_token_id=248070,
    conv_kernel_size=2,
    conv_group_size=16,
    selector_rank=256,
    selector_top_k=16,
)


def _components(text: TextConfig, drafts: dict[str, DraftConfig]) -> Components:
    architecture = text.architectures[0]
    return Components(
        text=text,
        mtp=MtpConfig(MTP_ARCHITECTURES[architecture]),
        vision=_vision(architecture),
        drafts=drafts,
        proposal_rows=PROPOSAL_ROWS,
    )


_DENSE_36 = RegisteredModel("qwen3.6-27b", _components(_TEXT_27B, {}))
_DENSE_38 = RegisteredModel("qwen3.8-27b", _components(_TEXT_27B, {"dflash2": _DFLASH2}))

# Keyed by recipe; the two representations of a model share its components.
REGISTERED: dict[str, RegisteredModel] = {
    "qwen3_6_27b": _DENSE_36,
    "qwen3_8_27b": _DENSE_38,
    "qwen3_6_27b_nvfp4": _DENSE_36,
    "qwen3_8_27b_nvfp4": _DENSE_38,
    "qwen3_6_35b_a3b": RegisteredModel("qwen3.6-35b-a3b", _components(_TEXT_35B, {"dflash": _DFLASH})),
}
