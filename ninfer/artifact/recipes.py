"""Which numeric format each parameter is stored in: the recipes of the artifact spec, section 11.3.

`generic_int` and `direct` are ours. `generic_int` extends the registered integer recipes to every size of the family;
`direct` stores every tensor as the checkpoint has it, which is what exact comparison with another program needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ninfer.artifact.parameters import FP32, INT32, LogicalParameter

BF16 = "bf16"
Q4, Q5, Q6, Q8 = "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"
FP8, NVFP4 = "fp8_e4m3fn_row_bf16", "nvfp4"

POLICIES = {NVFP4: "AllowA4", FP8: "AllowA8"}
DEFAULT_POLICY = "A16Only"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A named choice of formats.

    text_format   format of a text parameter of FLOATING kind (other components have one rule for all recipes)
    separate      roles that are never packed into a shared parent
    direct        every tensor keeps the element type of the checkpoint; `text_format` is not asked
    imported      takes matrices that are already NVFP4 or FP8 from a quantised checkpoint
    """

    name: str
    text_format: Callable[[LogicalParameter], str]
    separate: frozenset[str] = frozenset()
    direct: bool = False
    imported: bool = False

    def format_of(self, parameter: LogicalParameter, source_format: str = BF16) -> str:
        """The format `parameter` is stored in; `source_format` is bf16 or fp32, what its checkpoint tensor holds."""
        if parameter.kind == INT32:
            return "int32"
        if parameter.kind == FP32:
            return "fp32"
        if self.direct:
            return source_format
        if parameter.component == "text":
            return self.text_format(parameter)
        return _component_format(parameter)


def _component_format(parameter: LogicalParameter) -> str:
    role = parameter.role
    if parameter.component == "proposal":
        return Q4
    if parameter.component == "vision":
        return _VISION.get(role, BF16)
    if role in ("input_projection", "feature_projection"):
        return Q8
    # Routers and the drafters' small convolution and selector matrices stay bf16.
    return Q8 if role.startswith(("attention/", "mlp/", "moe/")) and role not in _SMALL else BF16


_SMALL = frozenset({"attention/query_norm", "attention/key_norm", "moe/router", "moe/shared_score"})

_VISION = {
    "patch_embedding": Q6,
    "merger/fc1": Q8,
    "merger/fc2": Q8,
    "attention/query": Q4,
    "attention/key": Q4,
    "attention/value": Q4,
    "mlp/fc1": Q4,
    "attention/output": Q5,
    "mlp/fc2": Q5,
}

_DENSE = {
    "attention/query": Q4,
    "attention/key": Q4,
    "attention/gate": Q5,
    "attention/value": Q5,
    "attention/output": Q5,
    "gdn/query": Q4,
    "gdn/key": Q4,
    "gdn/value": Q5,
    "gdn/z": Q5,
    "gdn/output": Q5,
    "mlp/gate": Q4,
    "mlp/up": Q4,
    "mlp/down": Q5,
}

_MATRICES = frozenset(_DENSE)
_MIXER_INPUTS = frozenset(role for role in _MATRICES if not role.startswith("mlp/") and not role.endswith("output"))


def _dense(vocabulary: str) -> Callable[[LogicalParameter], str]:
    def choose(parameter: LogicalParameter) -> str:
        if parameter.role in ("token_embedding", "output_head"):
            return vocabulary
        return _DENSE.get(parameter.role, BF16)

    return choose


def _experts(wide_down_layers: frozenset[int]) -> Callable[[LogicalParameter], str]:
    def choose(parameter: LogicalParameter) -> str:
        role = parameter.role
        if role in ("token_embedding", "output_head"):
            return Q8 if role == "token_embedding" else Q6
        if role.startswith("moe/experts/"):
            if not role.endswith("/down"):
                return Q4
            return Q6 if parameter.layer in wide_down_layers else Q5
        return Q8 if role in _MATRICES or role.startswith("moe/shared/") else BF16

    return choose


def _nvfp4_36(parameter: LogicalParameter) -> str:
    role, layer = parameter.role, parameter.layer
    if role in ("token_embedding", "output_head"):
        return Q8
    if role not in _MATRICES:
        return BF16
    assert layer is not None
    kept = {"attention/output": layer in (3, 7), "gdn/output": layer == 4}
    if role in _MIXER_INPUTS and role.startswith("attention/"):
        kept[role] = layer < 24
    return BF16 if kept.get(role, False) else NVFP4


def _nvfp4_38(parameter: LogicalParameter) -> str:
    role, layer = parameter.role, parameter.layer
    if role in ("token_embedding", "output_head"):
        return FP8
    if role not in _MATRICES:
        return BF16
    assert layer is not None
    return NVFP4 if role.startswith("mlp/") and layer < 56 else FP8


_AB = frozenset({"gdn/a_projection", "gdn/b_projection"})
_DENSE_Q8 = _dense(Q8)

_DENSE_RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("qwen3_6_27b", _dense(Q6), separate=_AB),
        Recipe("qwen3_8_27b", _DENSE_Q8, separate=_AB),
        Recipe("qwen3_6_27b_nvfp4", _nvfp4_36, separate=_AB, imported=True),
        Recipe("qwen3_8_27b_nvfp4", _nvfp4_38, imported=True),
        Recipe("generic_int", _DENSE_Q8, separate=_AB),
        Recipe("direct", _DENSE_Q8, separate=_AB, direct=True),
    )
}
_MOE_RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("qwen3_6_35b_a3b", _experts(frozenset({34, 38, 39}))),
        Recipe("generic_int", _experts(frozenset())),
        Recipe("direct", _experts(frozenset()), direct=True),
    )
}

RECIPE_NAMES = tuple(dict.fromkeys([*_DENSE_RECIPES, *_MOE_RECIPES]))


def recipe_for(name: str, *, moe: bool) -> Recipe:
    """The recipe called `name` for a dense or a mixture-of-experts model; ValueError if the family has no such one."""
    table = _MOE_RECIPES if moe else _DENSE_RECIPES
    if name not in table:
        family = "mixture-of-experts" if moe else "dense"
        raise ValueError(f"no recipe {name!r} for a {family} model; there are {', '.join(table)}")
    return table[name]
