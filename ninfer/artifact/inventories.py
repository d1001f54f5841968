"""Objects of a version 1 or 2 file, computed by rule from configs and recipe (artifact spec, section 10).

The rule: walk the blocks in physical order; members that one recipe gives the same format share a parent under its
old name. Each object knows the logical parameters it holds, which is also what the upgrade needs (section 14.2).
Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ninfer.artifact.config import FULL_ATTENTION
from ninfer.artifact.native import TEXT_ROLES, VISION_ROLES
from ninfer.artifact.parameters import Components, LogicalParameter, logical_parameters
from ninfer.artifact.profiles import Profile
from ninfer.artifact.recipes import Recipe, recipe_for

FRONTEND = tuple(f"frontend/{role}" for role in (*TEXT_ROLES, *VISION_ROLES))

_Pairs = tuple[tuple[str, str], tuple[str, str]]
_ATTENTION: _Pairs = (("query", "key"), ("gate", "value"))
_GDN: _Pairs = (("query", "key"), ("value", "z"))


@dataclass(frozen=True, slots=True)
class LegacyTensor:
    """One tensor of a version 1 or 2 file.

    name       old object name
    shape      stored shape
    format     version 3 name of its format
    members    logical parameters it holds, rows concatenated; for a divisor, those whose input it divides
    divisor    whether it is an activation divisor instead of weights
    """

    name: str
    shape: tuple[int, ...]
    format: str
    members: tuple[str, ...]
    divisor: bool = False


def legacy_tensors(profile: Profile) -> tuple[LegacyTensor, ...]:
    """Every tensor of a registered profile in physical order."""
    recipe = recipe_for(profile.recipe, moe=profile.components.text.moe is not None)
    return tuple(_Walk(profile.components, recipe).tensors())


class _Walk:
    def __init__(self, components: Components, recipe: Recipe) -> None:
        self.components = components
        self.recipe = recipe
        self.parameters = {item.name: item for item in logical_parameters(components)}

    def tensors(self) -> Iterator[LegacyTensor]:
        components = self.components
        yield self.same("text/token_embedding")
        for i, kind in enumerate(components.text.layer_types):
            yield from self.block(f"text/layers/{i}/", f"text/layers/{i}/", full=kind == FULL_ATTENTION)
        yield self.same("text/final_norm")
        yield self.same("text/output_head")
        if components.proposal_rows is not None:
            yield self.parent("text/draft_head", ["proposal/head"])
            yield self.parent("text/draft_head_token_ids", ["proposal/token_ids"])
        if components.mtp is not None:
            for role in ("input_projection", "embedding_norm", "hidden_norm"):
                yield self.same(f"mtp/{role}")
            yield from self.block("mtp/layer/", "mtp/layers/0/", full=True)
            yield self.same("mtp/final_norm")
        if components.vision is not None:
            yield from self.vision(components.vision.depth)
        for name, draft in components.drafts.items():
            yield from self.drafter(name, len(draft.layer_types))

    def format(self, parameter: LogicalParameter) -> str:
        return self.recipe.format_of(parameter)

    def same(self, name: str) -> LegacyTensor:
        return self.parent(name, [name])

    def parent(self, name: str, members: Sequence[str]) -> LegacyTensor:
        """One object of the members' rows; they have the same format and the same shape behind the first axis."""
        parameters = [self.parameters[member] for member in members]
        formats = {self.format(parameter) for parameter in parameters}
        assert len(formats) == 1, f"{name} mixes {formats}"
        tail = parameters[0].shape[1:]
        rows = sum(math.prod(parameter.shape) for parameter in parameters) // math.prod(tail)
        return LegacyTensor(name, (rows, *tail), formats.pop(), tuple(members))

    def with_divisor(self, parent: LegacyTensor, site: str) -> Iterator[LegacyTensor]:
        """The parent, and behind an NVFP4 one the divisor of its input."""
        yield parent
        if parent.format == "nvfp4":
            yield LegacyTensor(f"{site}/input_scale_divisor", (), "fp32", parent.members, divisor=True)

    def block(self, old: str, new: str, *, full: bool) -> Iterator[LegacyTensor]:
        """A decoder layer; `old` and `new` are its paths in the old file and among the parameters."""
        yield self.parent(f"{old}input_norm", [f"{new}input_norm"])
        if full:
            yield from self.mixer(f"{old}attention/", f"{new}attention/", _ATTENTION, ("query_norm", "key_norm"))
        else:
            yield from self.gdn(f"{old}gdn/", f"{new}gdn/")
        yield self.parent(f"{old}post_attention_norm", [f"{new}post_attention_norm"])
        moe = self.components.text.moe
        if moe is None:
            pair = [f"{new}mlp/gate", f"{new}mlp/up"]
            yield from self.with_divisor(self.parent(f"{old}mlp/gate_up", pair), f"{old}mlp/gate_up_projection")
            down = self.parent(f"{old}mlp/down", [f"{new}mlp/down"])
            yield from self.with_divisor(down, f"{old}mlp/down_projection")
        else:
            yield from self.experts(f"{old}moe/", f"{new}moe/", moe.num_experts)

    def mixer(self, old: str, new: str, pairs: _Pairs, norms: tuple[str, ...]) -> Iterator[LegacyTensor]:
        """Input projections in one parent if all have one format, else in two; norms; output projection."""
        names = [[new + role for role in pair] for pair in pairs]
        flat = [*names[0], *names[1]]
        titles = ["_".join(pair) for pair in pairs]
        if len({self.format(self.parameters[name]) for name in flat}) == 1:
            parent = self.parent(f"{old}{'_'.join(titles)}", flat)
            yield from self.with_divisor(parent, f"{old}input_projection")
        else:
            for title, pair in zip(titles, names, strict=True):
                yield self.parent(old + title, pair)
        for norm in norms:
            yield self.parent(f"{old}{norm}", [f"{new}{norm}"])
        yield from self.with_divisor(self.parent(f"{old}output", [f"{new}output"]), f"{old}output_projection")

    def gdn(self, old: str, new: str) -> Iterator[LegacyTensor]:
        for role in ("a_log", "dt_bias", "convolution"):
            yield self.parent(old + role, [new + role])
        pair = [f"{new}a_projection", f"{new}b_projection"]
        if "gdn/a_projection" in self.recipe.separate:
            for role in ("a_projection", "b_projection"):
                yield self.parent(old + role, [new + role])
        else:
            yield self.parent(f"{old}a_b_projection", pair)
        yield from self.mixer(old, new, _GDN, ("norm",))

    def experts(self, old: str, new: str, count: int) -> Iterator[LegacyTensor]:
        yield self.parent(f"{old}router_shared_gate", [f"{new}router", f"{new}shared_score"])
        halves = [f"{new}experts/{e}/{half}" for e in range(count) for half in ("gate", "up")]
        yield self.parent(f"{old}routed_gate_up", halves)
        yield self.parent(f"{old}routed_down", [f"{new}experts/{e}/down" for e in range(count)])
        yield self.parent(f"{old}shared_gate_up", [f"{new}shared/gate", f"{new}shared/up"])
        yield self.parent(f"{old}shared_down", [f"{new}shared/down"])

    def vision(self, depth: int) -> Iterator[LegacyTensor]:
        for role in ("patch_embedding", "patch_embedding_bias", "position_embedding"):
            yield self.same(f"vision/{role}")
        for b in range(depth):
            path = f"vision/layers/{b}/"
            for suffix in ("", "_bias"):
                members = [f"{path}attention/{role}{suffix}" for role in ("query", "key", "value")]
                yield self.parent(f"{path}attention/qkv{suffix}", members)
            for role in ("attention/output", "mlp/fc1", "mlp/fc2"):
                yield self.same(path + role)
                yield self.same(f"{path}{role}_bias")
            for norm in ("norm1", "norm2"):
                for part in ("weight", "bias"):
                    yield self.parent(f"{path}{norm}/{part}", [f"{path}{norm}_{part}"])
        for role in ("fc1", "fc1_bias", "fc2", "fc2_bias"):
            yield self.same(f"vision/merger/{role}")
        for part in ("weight", "bias"):
            yield self.parent(f"vision/merger/norm/{part}", [f"vision/merger/norm_{part}"])

    def drafter(self, name: str, layers: int) -> Iterator[LegacyTensor]:
        yield self.same(f"{name}/feature_projection")
        yield self.same(f"{name}/context_norm")
        for i in range(layers):
            path = f"{name}/layers/{i}/"
            yield self.same(f"{path}input_norm")
            yield from self.convolution(f"{path}attention_conv/")
            members = [f"{path}attention/{role}" for role in ("query", "key", "value")]
            yield self.parent(f"{path}attention/query_key_value", members)
            for role in ("attention/query_norm", "attention/key_norm", "attention/output", "post_attention_norm"):
                yield self.same(path + role)
            yield from self.convolution(f"{path}mlp_conv/")
            yield self.parent(f"{path}mlp/gate_up", [f"{path}mlp/gate", f"{path}mlp/up"])
            yield self.same(f"{path}mlp/down")
        yield self.same(f"{name}/final_norm")
        for role in ("hidden_projection", "predecessor_codebook", "successor_codebook"):
            if f"{name}/candidate_selector/{role}" in self.parameters:
                yield self.same(f"{name}/candidate_selector/{role}")

    def convolution(self, path: str) -> Iterator[LegacyTensor]:
        for role in ("base_kernel", "kernel_projection"):
            if path + role in self.parameters:
                yield self.same(path + role)
