"""The object list of a newly written version-3 artifact (artifact spec, sections 11.2 and 11.4).

Which parameters share a parent object, what every object is called, how each parameter is bound, and how it is used.
Offsets and files are the writer's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ninfer.artifact.directory import Binding, Component, Part, Parts, Proposal, Use, WholeObject
from ninfer.artifact.parameters import Components, LogicalParameter, packing_groups
from ninfer.artifact.placement import DirectoryPlan, PlannedObject, PlannedResource, PlannedTensor
from ninfer.artifact.recipes import DEFAULT_POLICY, NVFP4, POLICIES, Recipe

TEXT_ROLES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
VISION_ROLES = ("preprocessor_config.json", "video_preprocessor_config.json")
DIVISOR_ROLE = "activation_input_divisor"

# Components are listed in the order of section 4.6.
_OPTIONAL = ("vision", "mtp", "dflash", "dflash2")


@dataclass(frozen=True, slots=True)
class Parent:
    """One weight object: `members`, rows concatenated in order, stored in one format."""

    id: str
    shape: tuple[int, ...]
    format: str
    members: tuple[LogicalParameter, ...]


@dataclass(frozen=True, slots=True)
class NativePlan:
    """Everything about an artifact but its bytes and their places.

    resources    resource role to object id, in file order
    parents      the weight objects, in file order after the resources
    divisors     auxiliary object id to the parameter whose input it divides, in file order after the weights
    directory    all of it as the writer wants it, without metadata and provenance
    """

    resources: dict[str, str]
    parents: tuple[Parent, ...]
    divisors: dict[str, LogicalParameter]
    directory: DirectoryPlan


def plan_native(
    components: Components,
    parameters: Sequence[LogicalParameter],
    recipe: Recipe,
    resource_bytes: Mapping[str, int],
    source_format: Callable[[LogicalParameter], str] = lambda parameter: "bf16",
) -> NativePlan:
    """Plan the artifact of `parameters` (all of `components`, in canonical order).

    resource_bytes   length of each frontend resource by role; the vision roles only with a vision component
    source_format    bf16 or fp32, what the checkpoint holds of a parameter; only a direct recipe depends on it
    """
    formats = {p.name: recipe.format_of(p, source_format(p)) for p in parameters}
    by_name = {p.name: p for p in parameters}
    shared = {p.name: p.alias_of for p in parameters if p.alias_of is not None}
    if components.text.tie_word_embeddings and formats["text/output_head"] == formats["text/token_embedding"]:
        shared["text/output_head"] = "text/token_embedding"

    parents: list[tuple[LogicalParameter, ...]] = []
    packed: set[str] = set()
    for group in packing_groups(components):
        free = all(
            n not in packed and n not in shared and by_name[n].role not in recipe.separate for n in group.members
        )
        if free and len({formats[n] for n in group.members}) == 1:
            parents.append(tuple(by_name[n] for n in group.members))
            packed.update(group.members)
    parents += [(p,) for p in parameters if p.name not in packed and p.name not in shared]

    tensors = tuple(_parent(i, members, formats[members[0].name]) for i, members in enumerate(parents))
    uses, divisors = _uses(parameters, formats)
    resources = {role: _resource_id(role) for role in (*TEXT_ROLES, *VISION_ROLES) if role in resource_bytes}
    objects: list[PlannedObject] = [PlannedResource(id, resource_bytes[role]) for role, id in resources.items()]
    objects += [PlannedTensor(t.id, t.shape, t.format) for t in tensors]
    objects += [PlannedTensor(id, (), "fp32") for id in divisors]
    directory = DirectoryPlan(
        _components(components, resources), tuple(objects), _bindings(parameters, tensors, shared), uses
    )
    return NativePlan(resources, tensors, divisors, directory)


def _parent(index: int, members: tuple[LogicalParameter, ...], format: str) -> Parent:
    first = members[0].shape
    shape = first if len(members) == 1 else (sum(m.shape[0] for m in members), *first[1:])
    return Parent(f"weight/{index:06d}", shape, format, members)


def _bindings(
    parameters: Sequence[LogicalParameter], tensors: Sequence[Parent], shared: Mapping[str, str]
) -> dict[str, Binding]:
    own: dict[str, Binding] = {}
    for tensor in tensors:
        if len(tensor.members) == 1:
            own[tensor.members[0].name] = WholeObject(tensor.id)
            continue
        begin = 0
        for member in tensor.members:
            own[member.name] = Parts((Part(tensor.id, begin, begin + math.prod(member.shape)),))
            begin += math.prod(member.shape)
    return {p.name: own[shared.get(p.name, p.name)] for p in parameters}


def _uses(
    parameters: Sequence[LogicalParameter], formats: Mapping[str, str]
) -> tuple[tuple[Use, ...], dict[str, LogicalParameter]]:
    uses: list[Use] = []
    divisors: dict[str, LogicalParameter] = {}
    for parameter in parameters:
        format = formats[parameter.name]
        for name in parameter.inputs:
            auxiliaries: dict[str, Binding] = {}
            if format == NVFP4:
                id = f"auxiliary/{len(divisors):06d}"
                divisors[id] = parameter
                auxiliaries[DIVISOR_ROLE] = WholeObject(id)
            uses.append(Use(parameter.name, name, POLICIES.get(format, DEFAULT_POLICY), auxiliaries))
    return tuple(uses), divisors


def _components(components: Components, resources: Mapping[str, str]) -> dict[str, Component]:
    def of(roles: tuple[str, ...]) -> dict[str, str]:
        return {role: resources[role] for role in roles if role in resources}

    rows = components.proposal_rows
    proposal = None if rows is None else Proposal("indexed", rows)
    out = {"text": Component(components.text.to_json(), None, of(TEXT_ROLES), proposal)}
    configs = {"vision": components.vision, "mtp": components.mtp, **components.drafts}
    for name in _OPTIONAL:
        if (config := configs.get(name)) is not None:
            out[name] = Component(config.to_json(), "text", of(VISION_ROLES) if name == "vision" else {})
    return out


def _resource_id(role: str) -> str:
    return f"resource/{'vision' if role in VISION_ROLES else 'text'}/{role}"
