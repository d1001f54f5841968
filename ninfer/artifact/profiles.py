"""The identities that registered models had in versions 1 and 2 (artifact spec, section 9.1). Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ninfer.artifact.parameters import Components
from ninfer.artifact.registered import REGISTERED


@dataclass(frozen=True, slots=True)
class Profile:
    """One registered combination of model, representation and set of components.

    target       key of the model in labels, e.g. qwen3_8_27b
    model_id     public name
    weights_id   representation name of version 2
    recipe       name of the recipe that chooses formats (11.3)
    components   what the artifact holds
    """

    target: str
    model_id: str
    weights_id: str
    recipe: str
    components: Components


def _profile(target: str, weights_id: str, *, drafts: bool) -> Profile:
    recipe = target if weights_id == "groupwise-int" else f"{target}_{weights_id}"
    model = REGISTERED[recipe]
    components = model.components if drafts else replace(model.components, drafts={})
    return Profile(target, model.name, weights_id, recipe, components)


PROFILES = (
    _profile("qwen3_6_27b", "groupwise-int", drafts=False),
    _profile("qwen3_6_27b", "nvfp4", drafts=False),
    _profile("qwen3_8_27b", "groupwise-int", drafts=False),
    _profile("qwen3_8_27b", "groupwise-int", drafts=True),
    _profile("qwen3_8_27b", "nvfp4", drafts=False),
    _profile("qwen3_8_27b", "nvfp4", drafts=True),
    _profile("qwen3_6_35b_a3b", "groupwise-int", drafts=True),
)
