"""Reading a checkpoint's config.json into component configs, with the checks of section 12.2.

Every dimension has to be stated: class defaults of a modelling library are not those of the released checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ninfer.artifact.config import (
    FULL_ATTENTION,
    LINEAR_ATTENTION,
    MTP_ARCHITECTURES,
    VISION_MODEL_TYPES,
    DraftConfig,
    MtpConfig,
    TextConfig,
    VisionConfig,
    float32,
    interleaved_sections,
    parse_draft_config,
    parse_text_config,
    parse_vision_config,
)
from ninfer.artifact.convert.checkpoint import Checkpoint, bad_source, load_json
from ninfer.artifact.parameters import LogicalParameter, Source
from ninfer.errors import ArtifactError

# Architecture of a checkpoint's root to the architecture of its text decoder.
ARCHITECTURES = {
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5ForCausalLM": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForCausalLM": "Qwen3_5MoeForCausalLM",
}
MODEL_TYPES = {
    "Qwen3_5ForCausalLM": ("qwen3_5", "qwen3_5_text"),
    "Qwen3_5MoeForCausalLM": ("qwen3_5_moe", "qwen3_5_moe_text"),
}
QWEN_VOCABULARY = 248320
VISION_TOKEN_IDS = {
    "vision_start_token_id": 248053,
    "vision_end_token_id": 248054,
    "image_token_id": 248056,
    "video_token_id": 248057,
}
# Fields with one legal value, checked where a config states them.
FIXED_TEXT = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "mamba_ssm_dtype": "float32",
    "mtp_use_dedicated_embeddings": False,
    "mlp_only_layers": [],
}
FIXED_VISION = {"in_channels": 3, "hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": []}
FIXED_DRAFT = {"hidden_act": "silu", "attention_bias": False, "is_causal": False}
DRAFT_BLOCK_SIZES = {"dflash": 16, "dflash2": 8}

_TEXT_KEYS = (
    *("hidden_size", "vocab_size", "num_hidden_layers", "max_position_embeddings", "rms_norm_eps"),
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
    *("linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim"),
    "linear_conv_kernel_dim",
)
_MOE_KEYS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")
_DRAFT_KEYS = (
    *("architectures", "model_type", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("num_hidden_layers", "rms_norm_eps", "max_position_embeddings", "layer_types"),
)

_Config = TypeVar("_Config", TextConfig, VisionConfig, DraftConfig)


@dataclass(frozen=True, slots=True)
class SourceModel:
    """What a base checkpoint holds.

    text_prefix   start of the text tensors' names
    mtp, vision   None when the checkpoint lacks the component
    """

    text: TextConfig
    mtp: MtpConfig | None
    vision: VisionConfig | None
    text_prefix: str


def read_source(directory: Path, checkpoint: Checkpoint) -> SourceModel:
    """The components of the base checkpoint in `directory`; ArtifactError BAD_SOURCE if it is not of this family."""
    path = directory / "config.json"
    root = load_json(path)
    names = root.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
        raise bad_source(path, f"architectures is {names!r}, expected one of {', '.join(ARCHITECTURES)}")
    architecture = ARCHITECTURES[names[0]]
    if root.get("model_type") not in MODEL_TYPES[architecture]:
        raise bad_source(path, f"model_type is {root.get('model_type')!r}, expected {MODEL_TYPES[architecture][0]}")
    text = root.get("text_config", root)
    if not isinstance(text, dict):
        raise bad_source(path, "text_config is not an object")
    parsed = _text(path, architecture, root, text, with_mtp="mtp.fc.weight" in checkpoint)
    return SourceModel(
        text=parsed,
        mtp=MtpConfig(MTP_ARCHITECTURES[architecture]) if "mtp.fc.weight" in checkpoint else None,
        vision=_vision(path, root, parsed) if "vision_config" in root else None,
        text_prefix=_text_prefix(checkpoint),
    )


def _text_prefix(checkpoint: Checkpoint) -> str:
    for prefix in ("model.language_model.", "model."):
        if f"{prefix}embed_tokens.weight" in checkpoint:
            return prefix
    raise bad_source(checkpoint.path, "tensor model.embed_tokens.weight is missing (also as model.language_model.…)")


def _text(
    path: Path, architecture: str, root: Mapping[str, Any], text: Mapping[str, Any], *, with_mtp: bool
) -> TextConfig:
    _check_fixed(path, text, FIXED_TEXT)
    if with_mtp and text.get("mtp_num_hidden_layers", 1) != 1:
        raise bad_source(path, f"mtp_num_hidden_layers is {text['mtp_num_hidden_layers']!r}, expected 1")
    config: dict[str, object] = {key: text[key] for key in _TEXT_KEYS if key in text}
    config["architectures"] = [architecture]
    config["model_type"] = MODEL_TYPES[architecture][1]
    config["tie_word_embeddings"] = _tied(path, root, text)
    config["layer_types"] = _layer_types(path, text)
    config["rope_parameters"] = _rope(path, text)
    for key in _MOE_KEYS if architecture == "Qwen3_5MoeForCausalLM" else ("intermediate_size",):
        if key in text:
            config[key] = text[key]
    return _as_source_fault(lambda: parse_text_config(_stored_reals(config), str(path), with_mtp=with_mtp))


def _tied(path: Path, root: Mapping[str, Any], text: Mapping[str, Any]) -> object:
    stated = [level["tie_word_embeddings"] for level in (root, text) if "tie_word_embeddings" in level]
    if not stated:
        raise bad_source(path, "tie_word_embeddings is missing")
    if any(value is not stated[0] for value in stated):
        raise bad_source(path, f"tie_word_embeddings is {stated[0]!r} at the root and {stated[1]!r} in text_config")
    return stated[0]


def _layer_types(path: Path, text: Mapping[str, Any]) -> object:
    if text.get("layer_types") is not None:
        return text["layer_types"]
    interval, layers = text.get("full_attention_interval"), text.get("num_hidden_layers")
    if type(interval) is not int or interval < 1 or type(layers) is not int:
        raise bad_source(path, "neither layer_types nor full_attention_interval with num_hidden_layers is given")
    return [LINEAR_ATTENTION if (i + 1) % interval else FULL_ATTENTION for i in range(layers)]


def _rope(path: Path, text: Mapping[str, Any]) -> dict[str, object]:
    rope = text.get("rope_parameters")
    if not isinstance(rope, dict):
        raise bad_source(path, f"rope_parameters is {rope!r}, expected an object")
    fixed = {"rope_type": "default", "type": "default", "mrope_interleaved": True, "factor": 1.0}
    _check_fixed(path, rope, fixed)
    factors = [level["partial_rotary_factor"] for level in (rope, text) if "partial_rotary_factor" in level]
    if not factors or any(factor != factors[0] for factor in factors):
        raise bad_source(path, f"partial_rotary_factor must be given once, found {factors}")
    section = rope.get("mrope_section")
    head_dim = text.get("head_dim")
    if section is None and type(head_dim) is int and isinstance(factors[0], int | float):
        # Text alone never tells the three position axes apart; checkpoints without vision may leave this out.
        pairs = int(head_dim * factors[0]) // 2
        section = list(interleaved_sections(pairs, (pairs, pairs, pairs)))
    return {"rope_theta": rope.get("rope_theta"), "partial_rotary_factor": factors[0], "mrope_section": section}


def _vision(path: Path, root: Mapping[str, Any], text: TextConfig) -> VisionConfig:
    vision = root["vision_config"]
    if not isinstance(vision, dict):
        raise bad_source(path, "vision_config is not an object")
    _check_fixed(path, vision, {**FIXED_VISION, "out_hidden_size": text.hidden_size})
    if text.vocab_size == QWEN_VOCABULARY:
        _check_fixed(path, root, VISION_TOKEN_IDS)
    expected = VISION_MODEL_TYPES[text.architectures[0]]
    # Some releases carry the parent's name here.
    if vision.get("model_type") not in (expected, expected.removesuffix("_vision")):
        raise bad_source(path, f"vision_config.model_type is {vision.get('model_type')!r}, expected {expected}")
    keys = [key for key in VisionConfig.__slots__ if key != "model_type" and key in vision]
    config = {"model_type": expected, **{key: vision[key] for key in keys}}
    return _as_source_fault(lambda: parse_vision_config(config, str(path), text))


def read_draft(directory: Path, component: str, text: TextConfig) -> DraftConfig:
    """The config of a drafter's own checkpoint; ArtifactError BAD_SOURCE if it does not fit the target."""
    path = directory / "config.json"
    root = load_json(path)
    targets = {"hidden_size": text.hidden_size, "vocab_size": text.vocab_size, "num_target_layers": text.num_layers}
    _check_fixed(path, root, {**FIXED_DRAFT, **targets, "block_size": DRAFT_BLOCK_SIZES[component]})
    config: dict[str, object] = {key: root[key] for key in _DRAFT_KEYS if key in root}
    rope = root.get("rope_parameters")
    config["rope_parameters"] = {"rope_theta": rope.get("rope_theta") if isinstance(rope, dict) else None}
    if "sliding_attention" in root.get("layer_types", []):
        config["sliding_window"] = root.get("sliding_window")
    draft = root.get("dflash_config")
    keys = ["target_layer_ids", "mask_token_id"]
    if component == "dflash2":
        keys += ["conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"]
    config["dflash_config"] = {key: draft[key] for key in keys if key in draft} if isinstance(draft, dict) else None
    return _as_source_fault(lambda: parse_draft_config(_stored_reals(config), str(path), component, text))


def resolve_experts(parameter: LogicalParameter, checkpoint: Checkpoint) -> LogicalParameter:
    """`parameter`, read from its expert's own tensor where the checkpoint has that instead of the fused one.

    Releases fuse all experts of a layer; `transformers` and quantised re-releases store each projection alone.
    """
    source = parameter.source
    if source is None or not parameter.role.startswith("moe/experts/") or source.tensor in checkpoint:
        return parameter
    expert, projection = parameter.role.split("/")[2:]
    folder = source.tensor.rpartition(".")[0]
    tensor = f"{folder}.{expert}.{projection}_proj.weight"
    if tensor not in checkpoint:
        return parameter
    return replace(parameter, source=Source(source.checkpoint, tensor, parameter.shape))


def _check_fixed(path: Path, config: Mapping[str, Any], expected: Mapping[str, object]) -> None:
    for key, value in expected.items():
        if key in config and config[key] is not None and config[key] != value:
            raise bad_source(path, f"{key} is {config[key]!r}, expected {value!r}")


def _stored_reals(config: dict[str, object]) -> dict[str, object]:
    eps = config.get("rms_norm_eps")
    return {**config, "rms_norm_eps": float32(eps)} if isinstance(eps, float) else config


def _as_source_fault(parse: Callable[[], _Config]) -> _Config:
    try:
        return parse()
    except ArtifactError as error:
        raise ArtifactError("BAD_SOURCE", error.path, error.detail) from None
