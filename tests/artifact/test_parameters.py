"""Logical parameters: totals, shapes, sources and inputs of the artifact spec, sections 11.1 and 11.2."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from ninfer.artifact import config as cfg
from ninfer.artifact.parameters import Components, LogicalParameter, RowBlocks, logical_parameters, packing_groups
from tests.artifact.test_config import DFLASH2, TEXT_27B, VISION, moe_text

DENSE = cfg.parse_text_config(TEXT_27B, "m")
MOE = cfg.parse_text_config(
    moe_text(
        hidden_size=2048,
        num_hidden_layers=40,
        layer_types=list(DENSE.layer_types[:40]),
        num_attention_heads=16,
        num_key_value_heads=2,
        linear_num_value_heads=32,
    ),
    "m",
)
DFLASH = {
    **{k: v for k, v in DFLASH2.items() if k not in ("architectures", "num_hidden_layers", "layer_types")},
    "architectures": ["DFlashDraftModel"],
    "intermediate_size": 6144,
    "num_hidden_layers": 6,
    "sliding_window": 4096,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "dflash_config": {"target_layer_ids": [1, 6, 11, 16, 22, 27, 32, 37], "mask_token_id": 248077},
}


def dense_components(*, dflash2: bool = False) -> Components:
    drafts = {"dflash2": cfg.parse_draft_config(DFLASH2, "m", "dflash2", DENSE)} if dflash2 else {}
    vision = cfg.parse_vision_config(VISION, "m", DENSE)
    return Components(DENSE, cfg.MtpConfig("Qwen3_5MTP"), vision, drafts, proposal_rows=131072)


def moe_components() -> Components:
    vision = cfg.parse_vision_config({**VISION, "model_type": "qwen3_5_moe_vision"}, "m", MOE)
    drafts = {"dflash": cfg.parse_draft_config(DFLASH, "m", "dflash", MOE)}
    return Components(MOE, cfg.MtpConfig("Qwen3_5MoeMTP"), vision, drafts, proposal_rows=131072)


@pytest.mark.parametrize(
    ("components", "parameters", "uses"),
    [(dense_components(), 1422, 785), (dense_components(dflash2=True), 1513, 844), (moe_components(), 32713, 32184)],
    ids=["27b", "27b-dflash2", "35b-dflash"],
)
def test_totals(components: Components, parameters: int, uses: int) -> None:
    listed = logical_parameters(components)
    assert len(listed) == len({p.name for p in listed}) == parameters
    assert sum(len(p.inputs) for p in listed) == uses
    # (parameter, input) is unique within each parameter.
    assert all(len(set(p.inputs)) == len(p.inputs) for p in listed)
    names = {p.name for p in listed}
    assert all(member in names for group in packing_groups(components) for member in group.members)


def named(components: Components, prefix: str = "model.language_model.") -> dict[str, LogicalParameter]:
    return {p.name: p for p in logical_parameters(components, prefix)}


@functools.cache
def moe_table() -> dict[str, LogicalParameter]:
    return named(moe_components())


def test_element_counts_are_those_of_the_published_models() -> None:
    """Model spec 3.1: every checkpoint element is in exactly one parameter."""
    listed = logical_parameters(Components(DENSE, cfg.MtpConfig("Qwen3_5MTP")))
    by_component = {c: sum(p.elements for p in listed if p.component == c) for c in ("text", "mtp")}
    assert by_component["text"] == 1_271_398_400 * 2 + 24_353_196_544 + 5_120
    assert by_component["mtp"] == 424_699_392
    vision = [p for p in logical_parameters(dense_components()) if p.component == "vision"]
    assert sum(p.elements for p in vision) == 460_730_096
    moe = moe_table().values()
    assert sum(p.elements for p in moe if p.component == "text") == 508_559_360 * 2 + 33_643_489_920 + 2_048
    assert sum(p.elements for p in moe if p.component == "mtp") == 844_640_768


def test_tensor_counts_are_those_of_the_published_checkpoints() -> None:
    def tensors(components: Components) -> int:
        return len({p.source.tensor for p in logical_parameters(components) if p.source})

    vision = cfg.parse_vision_config(VISION, "m", DENSE)
    assert tensors(Components(DENSE, cfg.MtpConfig("Qwen3_5MTP"), vision)) == 1199
    base = {p.source.tensor for p in moe_table().values() if p.source and p.source.checkpoint == "base"}
    assert len(base) == 1045
    drafts = [p for p in logical_parameters(dense_components(dflash2=True)) if p.component == "dflash2"]
    assert len({p.source.tensor for p in drafts if p.source}) == 81
    drafts = [p for p in moe_table().values() if p.component == "dflash"]
    assert len({p.source.tensor for p in drafts if p.source}) == 69


def test_query_and_gate_are_split_head_by_head() -> None:
    table = named(dense_components())
    query, gate = table["text/layers/3/attention/query"], table["text/layers/3/attention/gate"]
    assert query.source is not None
    assert gate.source is not None
    assert query.source.tensor == "model.language_model.layers.3.self_attn.q_proj.weight"
    assert (query.shape, query.source.shape) == ((6144, 5120), (12288, 5120))
    assert query.source.rows == RowBlocks(0, 256, 512, 24)
    assert gate.source.rows == RowBlocks(256, 256, 512, 24)
    assert query.inputs == ("text/layers/3/mixer_input",)


def test_gdn_sources() -> None:
    table = named(dense_components(), "model.")
    value = table["text/layers/0/gdn/value"]
    assert value.source is not None
    assert value.source.tensor == "model.layers.0.linear_attn.in_proj_qkv.weight"
    assert value.source.rows == RowBlocks(4096, 6144, 6144, 1)
    conv = table["text/layers/0/gdn/convolution"]
    assert conv.source is not None
    assert (conv.shape, conv.source.shape, conv.source.taps_first) == ((4, 10240), (10240, 1, 4), True)
    assert table["text/layers/0/gdn/a_log"].kind == "fp32"
    assert table["text/layers/0/gdn/norm"].shape == (128,)


def test_heads_are_read_by_every_drafter_present() -> None:
    table = named(dense_components(dflash2=True))
    readers = ("mtp/final_hidden", "dflash2/final_hidden")
    assert table["text/output_head"].inputs == ("text/final_hidden", *readers)
    assert table["proposal/head"].inputs == readers
    assert table["proposal/token_ids"].inputs == ()
    assert named(Components(DENSE))["text/output_head"].inputs == ("text/final_hidden",)


def test_tied_head_reads_the_embedding() -> None:
    tied = Components(dataclasses.replace(DENSE, tie_word_embeddings=True))
    source = named(tied)["text/output_head"].source
    assert source is not None
    assert source.tensor == "model.language_model.embed_tokens.weight"


def test_experts_are_rows_of_the_fused_tensors() -> None:
    table = moe_table()
    up = table["text/layers/0/moe/experts/3/up"]
    assert up.source is not None
    assert up.source.shape == (256, 1024, 2048)
    assert up.source.rows == RowBlocks(3 * 1024 + 512, 512, 512, 1)
    down = table["text/layers/0/moe/experts/3/down"]
    assert down.inputs == ("text/layers/0/moe/experts/3/product",)


def test_context_projections_share_the_drafters_binding() -> None:
    table = moe_table()
    assert table["dflash/layers/0/attention/context_key"].alias_of == "dflash/layers/0/attention/key"
    assert table["dflash/layers/0/attention/context_value"].inputs == ("dflash/context_input",)


def test_other_dimensions_drive_everything() -> None:
    small = dataclasses.replace(
        DENSE,
        hidden_size=96,
        layer_types=("linear_attention", "full_attention"),
        heads=6,
        kv_heads=2,
        head_dim=32,
        gdn_key_heads=2,
        gdn_value_heads=4,
        gdn_key_dim=16,
        gdn_value_dim=24,
        intermediate_size=160,
    )
    table = named(Components(small))
    assert table["text/layers/1/attention/query"].shape == (192, 96)
    assert table["text/layers/1/attention/query_norm"].shape == (32,)
    assert table["text/layers/0/gdn/convolution"].shape == (4, 2 * 32 + 96)
    assert table["text/layers/0/gdn/norm"].shape == (24,)
    assert table["text/layers/0/gdn/output"].shape == (96, 96)
