"""Component configurations of an artifact, checked by the closed rules of the artifact spec, section 4.6.

Every dimension the forward pass uses comes from these values: nothing is derived from a model's name. A key that is
missing, unknown, of the wrong JSON type, out of range or inconsistent with another key is ``BAD_CONFIG``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ninfer.artifact.config_fields import ConfigFields

FULL_ATTENTION = "full_attention"
LINEAR_ATTENTION = "linear_attention"
SLIDING_ATTENTION = "sliding_attention"

DENSE_ARCHITECTURE, MOE_ARCHITECTURE = "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"
MODEL_TYPES = {DENSE_ARCHITECTURE: "qwen3_5_text", MOE_ARCHITECTURE: "qwen3_5_moe_text"}
MTP_ARCHITECTURES = {DENSE_ARCHITECTURE: "Qwen3_5MTP", MOE_ARCHITECTURE: "Qwen3_5MoeMTP"}
VISION_MODEL_TYPES = {DENSE_ARCHITECTURE: "qwen3_5_vision", MOE_ARCHITECTURE: "qwen3_5_moe_vision"}
DRAFT_ARCHITECTURES = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Mixture-of-experts feed-forward: expert count, experts per token, and the two inner widths."""

    num_experts: int
    experts_per_token: int
    expert_intermediate_size: int
    shared_intermediate_size: int


@dataclass(frozen=True, slots=True)
class TextConfig:
    """Dimensions of the text decoder.

    Attention fields (`heads` … `mrope_section`) are zero or empty when no layer attends, and GDN fields (`gdn_…`,
    `conv_kernel`) are zero when no layer is linear. Exactly one of `intermediate_size` and `moe` is set.
    """

    architectures: tuple[str, ...]
    model_type: str
    hidden_size: int
    vocab_size: int
    layer_types: tuple[str, ...]
    max_position_embeddings: int
    tie_word_embeddings: bool
    rms_norm_eps: float
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    partial_rotary_factor: float
    mrope_section: tuple[int, ...]
    gdn_key_heads: int
    gdn_value_heads: int
    gdn_key_dim: int
    gdn_value_dim: int
    conv_kernel: int
    intermediate_size: int | None
    moe: MoeConfig | None

    @property
    def num_layers(self) -> int:
        return len(self.layer_types)

    @property
    def rotary_dim(self) -> int:
        """Leading channels of each head that rotate; even."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def gdn_key_width(self) -> int:
        """Columns of the GDN query, and of the GDN key."""
        return self.gdn_key_heads * self.gdn_key_dim

    @property
    def gdn_value_width(self) -> int:
        """Columns of the GDN value, and of its gate z."""
        return self.gdn_value_heads * self.gdn_value_dim

    @property
    def conv_channels(self) -> int:
        return 2 * self.gdn_key_width + self.gdn_value_width

    def to_json(self) -> dict[str, object]:
        """The component config a writer stores: the keys of section 4.6 in its order."""
        out: dict[str, object] = {
            "architectures": list(self.architectures),
            "model_type": self.model_type,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
            "num_hidden_layers": self.num_layers,
            "max_position_embeddings": self.max_position_embeddings,
            "tie_word_embeddings": self.tie_word_embeddings,
            "rms_norm_eps": float32(self.rms_norm_eps),
            "layer_types": list(self.layer_types),
        }
        if self.heads:
            out |= {
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads,
                "head_dim": self.head_dim,
                "rope_parameters": {
                    "rope_theta": self.rope_theta,
                    "partial_rotary_factor": self.partial_rotary_factor,
                    "mrope_section": list(self.mrope_section),
                },
            }
        if self.gdn_key_heads:
            out |= {
                "linear_num_key_heads": self.gdn_key_heads,
                "linear_key_head_dim": self.gdn_key_dim,
                "linear_num_value_heads": self.gdn_value_heads,
                "linear_value_head_dim": self.gdn_value_dim,
                "linear_conv_kernel_dim": self.conv_kernel,
            }
        if self.moe is None:
            out["intermediate_size"] = self.intermediate_size
        else:
            out |= {
                "num_experts": self.moe.num_experts,
                "num_experts_per_tok": self.moe.experts_per_token,
                "moe_intermediate_size": self.moe.expert_intermediate_size,
                "shared_expert_intermediate_size": self.moe.shared_intermediate_size,
            }
        return out


@dataclass(frozen=True, slots=True)
class MtpConfig:
    """The multi-token-prediction layer; its dimensions are the text decoder's."""

    architecture: str

    def to_json(self) -> dict[str, object]:
        return {"architectures": [self.architecture]}


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Dimensions of the vision tower; the merger's output width is the text hidden size."""

    model_type: str
    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    num_position_embeddings: int

    @property
    def patch_width(self) -> int:
        """Values of one flattened patch: three colours, `temporal_patch_size` frames, a square of pixels."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @property
    def merger_width(self) -> int:
        return self.hidden_size * self.spatial_merge_size**2

    def to_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """A block drafter (DFlash or DFlash2). `conv_…` and `selector_…` are None for DFlash."""

    architecture: str
    model_type: str
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    layer_types: tuple[str, ...]
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    sliding_window: int | None
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    conv_kernel_size: int | None
    conv_group_size: int | None
    selector_rank: int | None
    selector_top_k: int | None

    def to_json(self) -> dict[str, object]:
        """The component config a writer stores."""
        draft: dict[str, object] = {
            "target_layer_ids": list(self.target_layer_ids),
            "mask_token_id": self.mask_token_id,
        }
        for name in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
            if (value := getattr(self, name)) is not None:
                draft[name] = value
        out: dict[str, object] = {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "num_hidden_layers": len(self.layer_types),
            "rms_norm_eps": float32(self.rms_norm_eps),
            "rope_parameters": {"rope_theta": self.rope_theta},
            "max_position_embeddings": self.max_position_embeddings,
            "layer_types": list(self.layer_types),
        }
        if self.sliding_window is not None:
            out["sliding_window"] = self.sliding_window
        out["dflash_config"] = draft
        return out


def float32(value: float) -> float:
    """`value` rounded to binary32, as writers store real numbers."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def interleaved_sections(pairs: int, section: Sequence[int]) -> tuple[int, int, int]:
    """How many of `pairs` rotary pairs the interleaved map of section 4.6 gives to each of the three axes."""
    counts = [0, 0, 0]
    for pair in range(pairs):
        axis = pair % 3
        counts[axis if axis and pair < 3 * section[axis] else 0] += 1
    return counts[0], counts[1], counts[2]


def parse_text_config(config: Mapping[str, object], path: str, *, with_mtp: bool = False) -> TextConfig:
    """Read the config of component ``text``; `with_mtp` demands the attention keys even if no layer attends."""
    fields = ConfigFields(config, path, "text")
    architecture = fields.architecture(tuple(MODEL_TYPES))
    model_type = fields.choice("model_type", (MODEL_TYPES[architecture],))
    layers = fields.integer("num_hidden_layers")
    layer_types = fields.layer_types(layers, (FULL_ATTENTION, LINEAR_ATTENTION))
    common = {
        "hidden_size": fields.integer("hidden_size"),
        "vocab_size": fields.integer("vocab_size"),
        "max_position_embeddings": fields.integer("max_position_embeddings"),
    }
    tied = fields.boolean("tie_word_embeddings")
    eps = fields.real("rms_norm_eps")

    heads = kv_heads = head_dim = 0
    theta = factor = 0.0
    section: tuple[int, ...] = ()
    if with_mtp or FULL_ATTENTION in layer_types or fields.has("num_attention_heads"):
        heads, kv_heads = fields.grouped_heads("num_attention_heads", "num_key_value_heads")
        head_dim = fields.integer("head_dim")
        rope = fields.nested("rope_parameters")
        theta, factor = rope.real("rope_theta"), rope.real("partial_rotary_factor")
        section = rope.integers("mrope_section", minimum=0)
        rope.close()
        _check_rotary(fields, head_dim, factor, section)

    gdn = [0, 0, 0, 0, 0]
    if LINEAR_ATTENTION in layer_types or fields.has("linear_num_key_heads"):
        value_heads, key_heads = fields.grouped_heads("linear_num_value_heads", "linear_num_key_heads")
        gdn = [key_heads, value_heads]
        gdn += [fields.integer(f"linear_{k}_dim") for k in ("key_head", "value_head", "conv_kernel")]

    moe = None
    intermediate = None
    if architecture == MOE_ARCHITECTURE:
        moe = MoeConfig(
            num_experts=fields.integer("num_experts"),
            experts_per_token=fields.integer("num_experts_per_tok"),
            expert_intermediate_size=fields.integer("moe_intermediate_size"),
            shared_intermediate_size=fields.integer("shared_expert_intermediate_size"),
        )
        if moe.experts_per_token > moe.num_experts:
            raise fields.bad(f"num_experts_per_tok {moe.experts_per_token} exceeds num_experts {moe.num_experts}")
    else:
        intermediate = fields.integer("intermediate_size")
    fields.close()
    return TextConfig(
        architectures=(architecture,),
        model_type=model_type,
        layer_types=layer_types,
        tie_word_embeddings=tied,
        rms_norm_eps=eps,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=theta,
        partial_rotary_factor=factor,
        mrope_section=section,
        gdn_key_heads=gdn[0],
        gdn_value_heads=gdn[1],
        gdn_key_dim=gdn[2],
        gdn_value_dim=gdn[3],
        conv_kernel=gdn[4],
        intermediate_size=intermediate,
        moe=moe,
        **common,
    )


def parse_mtp_config(config: Mapping[str, object], path: str, text: TextConfig) -> MtpConfig:
    """Read the config of component ``mtp``, whose architecture must match the text family."""
    fields = ConfigFields(config, path, "mtp")
    architecture = fields.architecture((MTP_ARCHITECTURES[text.architectures[0]],))
    fields.close()
    return MtpConfig(architecture)


def parse_vision_config(config: Mapping[str, object], path: str, text: TextConfig) -> VisionConfig:
    """Read the config of component ``vision``."""
    fields = ConfigFields(config, path, "vision")
    vision = VisionConfig(
        model_type=fields.choice("model_type", (VISION_MODEL_TYPES[text.architectures[0]],)),
        depth=fields.integer("depth"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=fields.integer("num_heads"),
        patch_size=fields.integer("patch_size"),
        temporal_patch_size=fields.integer("temporal_patch_size"),
        spatial_merge_size=fields.integer("spatial_merge_size"),
        num_position_embeddings=fields.integer("num_position_embeddings"),
    )
    fields.close()
    width, remainder = divmod(vision.hidden_size, vision.num_heads)
    if remainder or width % 4:
        raise fields.bad(f"hidden_size {vision.hidden_size} over {vision.num_heads} heads must give a multiple of 4")
    if math.isqrt(vision.num_position_embeddings) ** 2 != vision.num_position_embeddings:
        raise fields.bad(f"num_position_embeddings {vision.num_position_embeddings} is not a square")
    return vision


def parse_draft_config(config: Mapping[str, object], path: str, component: str, text: TextConfig) -> DraftConfig:
    """Read the config of component ``dflash`` or ``dflash2``."""
    fields = ConfigFields(config, path, component)
    architecture = fields.architecture((DRAFT_ARCHITECTURES[component],))
    layer_types = fields.layer_types(fields.integer("num_hidden_layers"), (FULL_ATTENTION, SLIDING_ATTENTION))
    heads, kv_heads = fields.grouped_heads("num_attention_heads", "num_key_value_heads")
    rope = fields.nested("rope_parameters")
    theta = rope.real("rope_theta")
    rope.close()
    draft = fields.nested("dflash_config")
    extras: list[int | None] = [None] * 4
    if component == "dflash2":
        extras = [draft.integer(k) for k in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")]
    parsed = DraftConfig(
        architecture=architecture,
        model_type=fields.choice("model_type", ("qwen3",)),
        intermediate_size=fields.integer("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.integer("head_dim"),
        layer_types=layer_types,
        rms_norm_eps=fields.real("rms_norm_eps"),
        rope_theta=theta,
        max_position_embeddings=fields.integer("max_position_embeddings"),
        sliding_window=fields.integer("sliding_window") if SLIDING_ATTENTION in layer_types else None,
        target_layer_ids=draft.integers("target_layer_ids", minimum=0),
        mask_token_id=draft.integer("mask_token_id", minimum=0),
        conv_kernel_size=extras[0],
        conv_group_size=extras[1],
        selector_rank=extras[2],
        selector_top_k=extras[3],
    )
    draft.close()
    fields.close()
    if parsed.head_dim % 2:
        raise fields.bad(f"head_dim {parsed.head_dim} is odd")
    taps = parsed.target_layer_ids
    if not taps or len(set(taps)) != len(taps) or max(taps) >= text.num_layers:
        raise fields.bad(f"target_layer_ids {list(taps)} must be distinct and below {text.num_layers}")
    if parsed.mask_token_id >= text.vocab_size:
        raise fields.bad(f"mask_token_id {parsed.mask_token_id} is not below vocab_size {text.vocab_size}")
    if parsed.conv_group_size is not None and text.hidden_size % parsed.conv_group_size:
        raise fields.bad(f"conv_group_size {parsed.conv_group_size} does not divide hidden_size {text.hidden_size}")
    return parsed


def _check_rotary(fields: ConfigFields, head_dim: int, factor: float, section: tuple[int, ...]) -> None:
    # A factor above one could overflow the product before it is judged.
    rotary = int(head_dim * min(factor, 2.0))
    if rotary <= 0 or rotary % 2 or rotary > head_dim:
        raise fields.bad(f"head_dim {head_dim} with partial_rotary_factor {factor} rotates {rotary} channels")
    if len(section) != 3 or sum(section) != rotary // 2:
        raise fields.bad(f"mrope_section {list(section)} must be 3 counts that sum to {rotary // 2}")
    counts = interleaved_sections(rotary // 2, section)
    if counts != section:
        raise fields.bad(f"mrope_section {list(section)} differs from its interleaved counts {list(counts)}")
