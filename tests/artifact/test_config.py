"""The closed-config rules of the artifact spec, section 4.6."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

import pytest

from ninfer.artifact import config as cfg
from ninfer.errors import ArtifactError

Config = dict[str, object]

TEXT_27B: Config = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "vocab_size": 248320,
    "num_hidden_layers": 64,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "rms_norm_eps": 9.999999974752427e-07,
    "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(64)],
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rope_parameters": {"rope_theta": 10000000.0, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 48,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 17408,
}
MOE_KEYS: Config = {
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
VISION: Config = {
    "model_type": "qwen3_5_vision",
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 2304,
}
DFLASH2: Config = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "intermediate_size": 17408,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 5,
    "rms_norm_eps": 9.999999974752427e-07,
    "rope_parameters": {"rope_theta": 10000000.0},
    "max_position_embeddings": 262144,
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "dflash_config": {
        "target_layer_ids": [5, 19, 33, 47, 61],
        "mask_token_id": 248070,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    },
}


def text(**changes: object) -> Config:
    return {**copy.deepcopy(TEXT_27B), **changes}


def without(source: Config, *keys: str) -> Config:
    return {k: v for k, v in source.items() if k not in keys}


def moe_text(**changes: object) -> Config:
    base = without(text(), "intermediate_size")
    family = {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"}
    return {**base, **family, **MOE_KEYS, **changes}


def rope(**changes: object) -> Config:
    return text(rope_parameters={**TEXT_27B["rope_parameters"], **changes})  # type: ignore[dict-item]


def test_text_config_of_the_27b() -> None:
    parsed = cfg.parse_text_config(text(), "m.ninfer")
    assert (parsed.query_width, parsed.kv_width, parsed.rotary_dim) == (6144, 1024, 64)
    assert (parsed.gdn_key_width, parsed.gdn_value_width, parsed.conv_channels) == (2048, 6144, 10240)
    assert (parsed.num_layers, parsed.intermediate_size, parsed.moe) == (64, 17408, None)
    assert parsed.to_json() == TEXT_27B
    assert list(parsed.to_json()) == list(TEXT_27B)


def test_text_config_of_a_mixture_of_experts() -> None:
    parsed = cfg.parse_text_config(moe_text(), "m.ninfer")
    assert parsed.moe == cfg.MoeConfig(256, 8, 512, 512)
    assert parsed.intermediate_size is None
    assert cfg.parse_text_config(parsed.to_json(), "m.ninfer") == parsed


def test_integer_literals_are_accepted_for_reals() -> None:
    parsed = cfg.parse_text_config(rope(rope_theta=10000000), "m.ninfer")
    assert parsed.rope_theta == 10000000.0


def test_only_the_keys_of_present_layer_kinds_are_needed() -> None:
    linear = without(text(num_hidden_layers=1, layer_types=["linear_attention"]), "num_attention_heads")
    linear = without(linear, "num_key_value_heads", "head_dim", "rope_parameters")
    parsed = cfg.parse_text_config(linear, "m.ninfer")
    assert (parsed.heads, parsed.head_dim, parsed.mrope_section) == (0, 0, ())
    assert cfg.parse_text_config(parsed.to_json(), "m.ninfer") == parsed
    with pytest.raises(ArtifactError, match="num_attention_heads is missing"):
        cfg.parse_text_config(linear, "m.ninfer", with_mtp=True)

    full = {k: v for k, v in text(num_hidden_layers=1, layer_types=["full_attention"]).items() if "linear" not in k}
    parsed = cfg.parse_text_config(full, "m.ninfer")
    assert (parsed.gdn_key_heads, parsed.conv_channels) == (0, 0)
    assert cfg.parse_text_config(parsed.to_json(), "m.ninfer") == parsed


BAD_TEXT: dict[str, Callable[[], Config]] = {
    "empty": dict,
    "two architectures": lambda: text(architectures=["Qwen3_5ForCausalLM", "Qwen3_5ForCausalLM"]),
    "unknown architecture": lambda: text(architectures=["LlamaForCausalLM"]),
    "architecture no array": lambda: text(architectures="Qwen3_5ForCausalLM"),
    "model type of the other family": lambda: text(model_type="qwen3_5_moe_text"),
    "unknown key": lambda: text(hidden_act="silu"),
    "missing key": lambda: without(text(), "vocab_size"),
    "zero": lambda: text(hidden_size=0),
    "negative": lambda: text(hidden_size=-1),
    "past u32": lambda: text(hidden_size=2**32),
    "float for integer": lambda: text(hidden_size=5120.0),
    "bool for integer": lambda: text(hidden_size=True),
    "string for integer": lambda: text(hidden_size="5120"),
    "null": lambda: text(hidden_size=None),
    "int for boolean": lambda: text(tie_word_embeddings=0),
    "epsilon zero": lambda: text(rms_norm_eps=0),
    "epsilon infinite": lambda: text(rms_norm_eps=float("inf")),
    "epsilon too large an integer": lambda: text(rms_norm_eps=10**400),
    "epsilon bool": lambda: text(rms_norm_eps=True),
    "too few layers": lambda: text(num_hidden_layers=65),
    "unknown layer type": lambda: text(num_hidden_layers=1, layer_types=["sliding_attention"]),
    "layer type no string": lambda: text(num_hidden_layers=1, layer_types=[1]),
    "heads not divisible": lambda: text(num_key_value_heads=5),
    "gdn heads not divisible": lambda: text(linear_num_value_heads=47),
    "rope no object": lambda: text(rope_parameters=[1]),
    "rope extra key": lambda: rope(rope_type="default"),
    "rotary odd": lambda: text(head_dim=252),
    "rotary wider than the head": lambda: rope(partial_rotary_factor=1.5),
    "rotary absurd": lambda: rope(partial_rotary_factor=1e308),
    "sections wrong sum": lambda: rope(mrope_section=[11, 11, 11]),
    "sections two": lambda: rope(mrope_section=[16, 16]),
    "sections not interleaved": lambda: rope(mrope_section=[10, 11, 11]),
    "dense and experts": lambda: text(**MOE_KEYS),
    "experts and dense": lambda: moe_text(intermediate_size=17408),
    "more experts per token than experts": lambda: moe_text(num_experts=4),
}


@pytest.mark.parametrize("case", BAD_TEXT)
def test_bad_text_config(case: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        cfg.parse_text_config(BAD_TEXT[case](), "m.ninfer")
    assert caught.value.code == "BAD_CONFIG"
    assert "m.ninfer" in str(caught.value)


@pytest.mark.parametrize(("pairs", "section"), [(32, (11, 11, 10)), (4, (2, 1, 1)), (2, (1, 1, 0)), (8, (3, 3, 2))])
def test_interleaved_sections(pairs: int, section: tuple[int, int, int]) -> None:
    assert cfg.interleaved_sections(pairs, section) == section


def test_mtp_config_matches_the_family() -> None:
    dense = cfg.parse_text_config(text(), "m.ninfer")
    moe = cfg.parse_text_config(moe_text(), "m.ninfer")
    assert cfg.parse_mtp_config({"architectures": ["Qwen3_5MTP"]}, "m", dense).to_json() == {
        "architectures": ["Qwen3_5MTP"]
    }
    assert cfg.parse_mtp_config({"architectures": ["Qwen3_5MoeMTP"]}, "m", moe).architecture == "Qwen3_5MoeMTP"
    for bad in ({"architectures": ["Qwen3_5MoeMTP"]}, {"architectures": ["Qwen3_5MTP"], "extra": 1}, {}):
        with pytest.raises(ArtifactError, match="BAD_CONFIG"):
            cfg.parse_mtp_config(bad, "m", dense)


def test_vision_config() -> None:
    dense = cfg.parse_text_config(text(), "m.ninfer")
    parsed = cfg.parse_vision_config(VISION, "m", dense)
    assert (parsed.patch_width, parsed.merger_width) == (1536, 4608)
    assert json.dumps(parsed.to_json()) == json.dumps(VISION)
    bad = [{"hidden_size": 1153}, {"num_heads": 64}, {"num_position_embeddings": 2305}, {"model_type": "qwen3_5"}]
    for change in [*bad, {"in_channels": 3}]:
        with pytest.raises(ArtifactError, match="BAD_CONFIG"):
            cfg.parse_vision_config({**VISION, **change}, "m", dense)


def dflash() -> Config:
    config = copy.deepcopy(DFLASH2)
    config["architectures"] = ["DFlashDraftModel"]
    config["dflash_config"] = {"target_layer_ids": [1, 6], "mask_token_id": 248077}
    return config


def test_draft_configs() -> None:
    dense = cfg.parse_text_config(text(), "m.ninfer")
    two = cfg.parse_draft_config(DFLASH2, "m", "dflash2", dense)
    assert (two.conv_group_size, two.selector_rank, two.sliding_window) == (16, 256, 2048)
    assert two.to_json() == DFLASH2
    one = cfg.parse_draft_config(dflash(), "m", "dflash", dense)
    assert (one.conv_group_size, one.target_layer_ids) == (None, (1, 6))
    assert one.to_json() == dflash()
    full = {**without(dflash(), "sliding_window"), "layer_types": ["full_attention"] * 5}
    assert cfg.parse_draft_config(full, "m", "dflash", dense).to_json() == full


@pytest.mark.parametrize(
    "change",
    [
        {"head_dim": 127},
        {"layer_types": ["full_attention"] * 5},
        {"dflash_config": {**DFLASH2["dflash_config"], "target_layer_ids": [5, 5]}},  # type: ignore[dict-item]
        {"dflash_config": {**DFLASH2["dflash_config"], "target_layer_ids": [64]}},  # type: ignore[dict-item]
        {"dflash_config": {**DFLASH2["dflash_config"], "target_layer_ids": []}},  # type: ignore[dict-item]
        {"dflash_config": {**DFLASH2["dflash_config"], "mask_token_id": 248320}},  # type: ignore[dict-item]
        {"dflash_config": {**DFLASH2["dflash_config"], "conv_group_size": 7}},  # type: ignore[dict-item]
        {"dflash_config": {"target_layer_ids": [5], "mask_token_id": 0}},
        {"architectures": ["DFlashDraftModel"]},
    ],
)
def test_bad_draft_config(change: Config) -> None:
    dense = cfg.parse_text_config(text(), "m.ninfer")
    with pytest.raises(ArtifactError, match="BAD_CONFIG"):
        cfg.parse_draft_config({**DFLASH2, **change}, "m", "dflash2", dense)
