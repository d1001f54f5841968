"""Recipes: the format of every role (artifact spec, section 11.3)."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from ninfer.artifact.parameters import logical_parameters
from ninfer.artifact.recipes import RECIPE_NAMES, recipe_for
from tests.artifact.test_parameters import dense_components, moe_components


@functools.cache
def formats(recipe: str, *, moe: bool = False, dflash2: bool = False) -> dict[str, str]:
    components = moe_components() if moe else dense_components(dflash2=dflash2)
    chosen = recipe_for(recipe, moe=moe)
    return {p.name: chosen.format_of(p) for p in logical_parameters(components)}


def test_vocabulary_of_the_two_generations() -> None:
    for recipe, expected in (("qwen3_6_27b", "q6_g64_fp16"), ("qwen3_8_27b", "q8_g32_fp16")):
        table = formats(recipe)
        assert table["text/token_embedding"] == table["text/output_head"] == expected
    assert formats("generic_int") == formats("qwen3_8_27b")


def test_roles_of_the_integer_recipes() -> None:
    table = formats("qwen3_8_27b", dflash2=True)
    layer = "text/layers/3/"
    assert table[layer + "attention/query"] == table[layer + "mlp/gate"] == "q4_g64_fp16"
    assert table[layer + "attention/value"] == table[layer + "mlp/down"] == "q5_g64_fp16"
    assert table[layer + "attention/query_norm"] == table[layer + "input_norm"] == "bf16"
    assert table["text/layers/0/gdn/a_projection"] == table["text/layers/0/gdn/convolution"] == "bf16"
    assert table["text/layers/0/gdn/a_log"] == table["text/layers/0/gdn/dt_bias"] == "fp32"
    assert table["mtp/input_projection"] == table["mtp/layers/0/mlp/up"] == "q8_g32_fp16"
    assert table["mtp/layers/0/attention/key_norm"] == table["mtp/final_norm"] == "bf16"
    assert table["dflash2/layers/0/attention/output"] == table["dflash2/feature_projection"] == "q8_g32_fp16"
    assert table["dflash2/layers/0/mlp_conv/kernel_projection"] == "bf16"
    assert table["dflash2/candidate_selector/hidden_projection"] == "bf16"
    assert table["vision/patch_embedding"] == "q6_g64_fp16"
    assert (table["proposal/head"], table["proposal/token_ids"]) == ("q4_g64_fp16", "int32")


def test_expert_recipe() -> None:
    table = formats("qwen3_6_35b_a3b", moe=True)
    assert (table["text/token_embedding"], table["text/output_head"]) == ("q8_g32_fp16", "q6_g64_fp16")
    downs = {i: table[f"text/layers/{i}/moe/experts/0/down"] for i in range(40)}
    assert [i for i, name in downs.items() if name == "q6_g64_fp16"] == [34, 38, 39]
    generic = formats("generic_int", moe=True)
    assert {name for name in table if table[name] != generic[name]} == {
        f"text/layers/{i}/moe/experts/{e}/down" for i in (34, 38, 39) for e in range(256)
    }
    assert table["mtp/layers/0/moe/experts/9/down"] == "q8_g32_fp16"
    assert table["mtp/layers/0/moe/router"] == table["text/layers/0/moe/shared_score"] == "bf16"


def test_imported_recipes() -> None:
    older, newer = formats("qwen3_6_27b_nvfp4"), formats("qwen3_8_27b_nvfp4")
    assert [i for i in range(3, 64, 4) if older[f"text/layers/{i}/attention/gate"] == "bf16"] == [3, 7, 11, 15, 19, 23]
    assert [i for i in range(3, 64, 4) if older[f"text/layers/{i}/attention/output"] == "bf16"] == [3, 7]
    gdn = [i for i in range(64) if i % 4 != 3]
    assert [i for i in gdn if older[f"text/layers/{i}/gdn/output"] == "bf16"] == [4]
    assert [i for i in range(64) if newer[f"text/layers/{i}/mlp/up"] == "nvfp4"] == list(range(56))
    assert Counter(newer.values())["fp8_e4m3fn_row_bf16"] == 2 + 16 * 5 + 48 * 5 + 8 * 3


def test_direct_keeps_what_the_checkpoint_holds() -> None:
    recipe = recipe_for("direct", moe=False)
    for parameter in logical_parameters(dense_components()):
        for source in ("bf16", "fp32"):
            expected = {"int32": "int32", "fp32": "fp32"}.get(parameter.kind, source)
            assert recipe.format_of(parameter, source) == expected


def test_recipes_belong_to_a_family() -> None:
    with pytest.raises(ValueError, match="no recipe 'qwen3_6_27b' for a mixture-of-experts model"):
        recipe_for("qwen3_6_27b", moe=True)
    with pytest.raises(ValueError, match="dense"):
        recipe_for("qwen3_6_35b_a3b", moe=False)
    assert {"generic_int", "direct", "qwen3_6_35b_a3b"} <= set(RECIPE_NAMES)
