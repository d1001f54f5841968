"""Planned object lists: counts and file sizes of the published artifacts (artifact spec, sections 9.3 and 11.4)."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from ninfer.artifact.directory import Directory, FileRecord, Part, Parts, TensorObject, WholeObject, to_json
from ninfer.artifact.formats import up
from ninfer.artifact.native import NativePlan, plan_native
from ninfer.artifact.parameters import Components, logical_parameters
from ninfer.artifact.placement import PlannedTensor, place
from ninfer.artifact.recipes import recipe_for
from tests.artifact.test_parameters import DENSE, dense_components, moe_components

# Published lengths (9.2); the templates are those of the published version-3 files.
RESOURCES_36 = {
    "tokenizer.json": 12_807_982,
    "tokenizer_config.json": 16_718,
    "chat_template.jinja": 8_539,
    "generation_config.json": 202,
    "preprocessor_config.json": 390,
    "video_preprocessor_config.json": 385,
}
RESOURCES_38 = {
    **RESOURCES_36,
    "tokenizer.json": 12_809_320,
    "tokenizer_config.json": 17_928,
    "chat_template.jinja": 9_712,
}


def planned(recipe: str, components: Components, resources: dict[str, int]) -> NativePlan:
    moe = components.text.moe is not None
    return plan_native(components, logical_parameters(components), recipe_for(recipe, moe=moe), resources)


@pytest.mark.parametrize(
    ("recipe", "components", "resources", "objects", "tensor_bytes", "span", "entry_start"),
    [
        ("qwen3_6_27b", dense_components(), RESOURCES_36, 1124, 17_482_342_304, 17_495_190_528, 348_160),
        ("qwen3_6_27b_nvfp4", dense_components(), RESOURCES_36, 1545, 18_310_884_112, 18_323_916_548, 438_272),
        ("qwen3_8_27b", dense_components(dflash2=True), RESOURCES_38, 1190, 20_424_296_864, 20_437_148_928, 372_736),
        (
            "qwen3_8_27b_nvfp4",
            dense_components(dflash2=True),
            RESOURCES_38,
            1246,
            23_706_400_256,
            23_719_322_628,
            393_216,
        ),
        ("qwen3_6_35b_a3b", moe_components(), RESOURCES_36, 940, 22_770_245_536, 22_783_095_296, 7_389_184),
    ],
    ids=["27b-3.6", "27b-3.6-nvfp4", "27b-3.8", "27b-3.8-nvfp4", "35b"],
)
def test_published_files(
    recipe: str,
    components: Components,
    resources: dict[str, int],
    objects: int,
    tensor_bytes: int,
    span: int,
    entry_start: int,
) -> None:
    plan = planned(recipe, components, resources)
    stored = place(plan.directory.objects)
    assert len(stored) == objects
    assert sum(o.bytes for o in stored if isinstance(o, TensorObject)) == tensor_bytes
    assert stored[-1].offset + stored[-1].bytes == span
    directory = Directory(
        plan.directory.components,
        stored,
        plan.directory.bindings,
        plan.directory.uses,
        (FileRecord(None, span),),
        {"name": "qwen3.6-27b"},
        {"recipe": recipe},
    )
    # The published provenance is unknown, and with it a few hundred bytes of the directory.
    assert abs(up(32 + len(to_json(directory)), 4096) - entry_start) <= 4096


def test_format_counts() -> None:
    def counts(recipe: str, components: Components, resources: dict[str, int]) -> Counter[str]:
        plan = planned(recipe, components, resources)
        return Counter(o.format for o in plan.directory.objects if isinstance(o, PlannedTensor))

    table = counts("qwen3_6_27b", dense_components(), RESOURCES_36)
    assert [table[k] for k in ("bf16", "fp32", "int32")] == [582, 96, 1]
    assert [table[f"q{b}_g{g}_fp16"] for b, g in ((4, 64), (5, 64), (6, 64), (8, 32))] == [183, 246, 3, 7]
    table = counts("qwen3_8_27b_nvfp4", dense_components(dflash2=True), RESOURCES_38)
    assert (table["bf16"], table["fp32"], table["fp8_e4m3fn_row_bf16"], table["nvfp4"]) == (579, 264, 146, 112)
    table = counts("qwen3_6_35b_a3b", moe_components(), RESOURCES_36)
    assert [table[k] for k in ("bf16", "fp32", "q4_g64_fp16", "q8_g32_fp16")] == [487, 60, 95, 195]


def test_auxiliaries_belong_to_the_uses_of_nvfp4_matrices() -> None:
    plan = planned("qwen3_6_27b_nvfp4", dense_components(), RESOURCES_36)
    assert len(plan.divisors) == 485
    with_divisor = [use for use in plan.directory.uses if use.auxiliaries]
    assert [use.parameter for use in with_divisor] == [p.name for p in plan.divisors.values()]
    assert {use.activation_policy for use in with_divisor} == {"AllowA4"}
    assert len(planned("qwen3_8_27b_nvfp4", dense_components(), RESOURCES_38).divisors) == 168


def test_bindings_of_one_attention_layer() -> None:
    """The example of section 4.7, two-parent file."""
    bindings = planned("qwen3_8_27b", dense_components(), RESOURCES_38).directory.bindings
    layer = "text/layers/3/attention/"
    query, key, gate, value = (bindings[layer + m] for m in ("query", "key", "gate", "value"))
    assert isinstance(query, Parts)
    assert isinstance(gate, Parts)
    first, second = query.parts[0].object, gate.parts[0].object
    assert query == Parts((Part(first, 0, 31457280),))
    assert key == Parts((Part(first, 31457280, 36700160),))
    assert gate == Parts((Part(second, 0, 31457280),))
    assert value == Parts((Part(second, 31457280, 36700160),))
    assert isinstance(bindings[layer + "output"], WholeObject)


def test_a_tied_head_shares_the_embedding_when_the_formats_agree() -> None:
    tied = Components(dataclasses.replace(DENSE, tie_word_embeddings=True))
    plan = planned("generic_int", tied, {})
    assert plan.directory.bindings["text/output_head"] == plan.directory.bindings["text/token_embedding"]
    assert sum(o.shape == (248320, 5120) for o in plan.directory.objects if isinstance(o, PlannedTensor)) == 1
    untied = planned("generic_int", Components(DENSE), {}).directory.bindings
    assert untied["text/output_head"] != untied["text/token_embedding"]


def test_drafter_context_shares_the_drafters_rows() -> None:
    bindings = planned("qwen3_6_35b_a3b", moe_components(), RESOURCES_36).directory.bindings
    layer = "dflash/layers/0/attention/"
    assert bindings[layer + "context_key"] == bindings[layer + "key"]
    assert bindings[layer + "context_value"] == bindings[layer + "value"]
