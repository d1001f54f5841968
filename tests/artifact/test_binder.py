"""Binding: what is refused with which code, and element ranges (artifact spec, sections 4.7, 4.8 and 15)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer.artifact.binder import bind
from ninfer.artifact.container import Artifact
from ninfer.artifact.directory import Binding, Component, Directory, Part, Parts, Proposal, Use, WholeObject
from ninfer.artifact.frontend import small_frontend
from ninfer.artifact.parameters import Components
from ninfer.artifact.placement import DirectoryPlan, PlannedTensor
from ninfer.artifact.quantise import encode
from ninfer.artifact.synth import synthesise
from ninfer.artifact.tiny import build_tiny, tiny_components
from ninfer.artifact.writer import ArtifactWriter
from ninfer.errors import ArtifactError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.ninfer"
    components = dataclasses.replace(tiny_components(), proposal_rows=50)
    synthesise(path, components, "generic_int", small_frontend(), seed=5, name="A tiny-1")
    return path


def changed(tiny: Path, change: Callable[[Directory], Mapping[str, Any]]) -> Artifact:
    """The tiny artifact with some members of its directory replaced."""
    artifact = Artifact.open(tiny)
    artifact.directory = dataclasses.replace(artifact.directory, **change(artifact.directory))
    return artifact


def test_everything_is_bound(tiny: Path) -> None:
    with Artifact.open(tiny) as artifact:
        bound = bind(artifact, ("text", "mtp", "proposal"))
        assert bound.text == tiny_components().text
        assert bound.mtp == tiny_components().mtp
        assert bound.vision is None
        assert (bound.name, bound.target, bound.weights_id) == ("A tiny-1", "_tiny_1", "groupwise-int")
        for parameter in bound.parameters():
            if parameter.name != "proposal/token_ids":
                values = bound.values(parameter.name)
                assert values.shape == parameter.shape
                assert values.dtype == np.float32
                assert np.isfinite(values).all()
        # No counts: ids in order, and the 21 special tokens, which are always among the rows.
        assert bound.token_ids()[:30].tolist() == [*range(29), 304]


def test_fused_parameters_are_slices_of_their_parent(tiny: Path) -> None:
    with Artifact.open(tiny) as artifact:
        bound = bind(artifact)
        layer = "text/layers/3/attention/"
        gate, value = bound.parameter(layer + "gate"), bound.parameter(layer + "value")
        assert gate.parts[0].object == value.parts[0].object
        parent = artifact.tensor(gate.parts[0].object)
        np.testing.assert_array_equal(np.concatenate([bound.values(layer + m) for m in ("gate", "value")]), parent)
        np.testing.assert_array_equal(bound.values(layer + "value", rows=(5, 9)), parent[256 + 5 : 256 + 9])


def test_only_selected_components_are_bound(tiny: Path) -> None:
    with Artifact.open(tiny) as artifact:
        bound = bind(artifact)
        assert bound.mtp is None
        with pytest.raises(ArtifactError, match="PARAMETER_MISSING"):
            bound.parameter("mtp/final_norm")


def component(directory: Directory, name: str, **changes: Any) -> dict[str, Component]:
    return {**directory.components, name: dataclasses.replace(directory.components[name], **changes)}


def config(directory: Directory, **changes: Any) -> dict[str, Component]:
    return component(directory, "text", config={**directory.components["text"].config, **changes})


def rebound(directory: Directory, name: str, binding: Binding | None) -> dict[str, Binding]:
    bindings = {**directory.bindings}
    if binding is None:
        del bindings[name]
    else:
        bindings[name] = binding
    return bindings


def auxiliary(directory: Directory, role: str, object: str, parts: int = 0) -> tuple[Use, ...]:
    binding: Binding = Parts((Part(object, 0, 1),) * parts) if parts else WholeObject(object)
    first = dataclasses.replace(directory.uses[0], auxiliaries={role: binding})
    return (first, *directory.uses[1:])


NORM = "text/final_norm"
IDS = "proposal/token_ids"
A_LOG = "text/layers/0/gdn/a_log"


def id_of(directory: Directory, name: str) -> str:
    binding = directory.bindings[name]
    assert isinstance(binding, WholeObject)
    return binding.object


REFUSED: dict[str, tuple[str, tuple[str, ...], Callable[[Directory], Mapping[str, Any]]]] = {
    "bad config": ("BAD_CONFIG", ("text",), lambda d: {"components": config(d, extra=1)}),
    "bad mtp config": ("BAD_CONFIG", ("text", "mtp"), lambda d: {"components": component(d, "mtp", config={})}),
    "proposal too large": (
        "BAD_CONFIG",
        ("text", "proposal"),
        lambda d: {"components": component(d, "text", proposal=Proposal("indexed", 385))},
    ),
    "vision absent": ("COMPONENT_ABSENT", ("text", "vision"), lambda d: {}),
    "drafter absent": ("COMPONENT_ABSENT", ("text", "dflash2"), lambda d: {}),
    "mtp absent": (
        "COMPONENT_ABSENT",
        ("text", "mtp"),
        lambda d: {"components": {"text": d.components["text"]}},
    ),
    "proposal absent": (
        "COMPONENT_ABSENT",
        ("text", "proposal"),
        lambda d: {"components": component(d, "text", proposal=None)},
    ),
    "unbound": ("PARAMETER_MISSING", ("text",), lambda d: {"bindings": rebound(d, NORM, None)}),
    "one layer more": (
        "PARAMETER_MISSING",
        ("text",),
        lambda d: {
            "components": config(
                d, num_hidden_layers=5, layer_types=[*tiny_components().text.layer_types, "full_attention"]
            )
        },
    ),
    "whole object of another shape": (
        "SHAPE_MISMATCH",
        ("text",),
        lambda d: {"bindings": rebound(d, NORM, WholeObject(id_of(d, A_LOG)))},
    ),
    "transposed": (
        "SHAPE_MISMATCH",
        ("text",),
        lambda d: {"components": config(d, intermediate_size=383)},
    ),
    "parts too short": (
        "SHAPE_MISMATCH",
        ("text",),
        lambda d: {"bindings": rebound(d, NORM, Parts((Part(id_of(d, NORM), 0, 127),)))},
    ),
    "integers for values": (
        "UNSUPPORTED",
        ("text",),
        lambda d: {"bindings": rebound(d, A_LOG, Parts((Part(id_of(d, IDS), 0, 4),)))},
    ),
    "values for integers": (
        "UNSUPPORTED",
        ("text", "proposal"),
        lambda d: {"bindings": rebound(d, IDS, Parts((Part(id_of(d, NORM), 0, 50),)))},
    ),
    "unknown role": ("BAD_AUXILIARY", ("text",), lambda d: {"uses": auxiliary(d, "bias", id_of(d, NORM))}),
    "divisor no scalar": (
        "BAD_AUXILIARY",
        ("text",),
        lambda d: {"uses": auxiliary(d, "activation_input_divisor", id_of(d, A_LOG))},
    ),
    "divisor of two parts": (
        "BAD_AUXILIARY",
        ("text",),
        lambda d: {"uses": auxiliary(d, "activation_input_divisor", id_of(d, A_LOG), parts=2)},
    ),
    "rotated input": ("UNSUPPORTED", ("text",), lambda d: {"uses": auxiliary(d, "hadamard_signs", id_of(d, NORM))}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, tiny: Path) -> None:
    code, components, change = REFUSED[case]
    with changed(tiny, change) as artifact, pytest.raises(ArtifactError) as caught:
        bind(artifact, components)
    assert caught.value.code == code
    assert str(tiny) in str(caught.value)


def test_auxiliaries_of_unselected_parameters_do_not_matter(tiny: Path) -> None:
    def last_use(directory: Directory) -> Mapping[str, Any]:
        use = dataclasses.replace(directory.uses[-1], auxiliaries={"bias": WholeObject("weight/000000")})
        return {"uses": (*directory.uses[:-1], use)}

    with changed(tiny, last_use) as artifact:
        bind(artifact)
        with pytest.raises(ArtifactError, match="BAD_AUXILIARY"):
            bind(artifact, ("text", "mtp", "proposal"))


def test_unknown_component_is_a_callers_fault(tiny: Path) -> None:
    with Artifact.open(tiny) as artifact, pytest.raises(ValueError, match="audio"):
        bind(artifact, ("text", "audio"))


def test_full_proposal_has_no_parameters_of_its_own(tiny: Path) -> None:
    def full(directory: Directory) -> Mapping[str, Any]:
        return {"components": component(directory, "text", proposal=Proposal("full", None))}

    with changed(tiny, full) as artifact:
        assert bind(artifact, ("text", "proposal")).components.proposal_rows is None


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_divisor_values(value: float, tmp_path: Path) -> None:
    with divisor_artifact(tmp_path / "m.ninfer", value) as artifact, pytest.raises(ArtifactError) as caught:
        bind(artifact)
    assert caught.value.code == "BAD_AUXILIARY"


def test_good_divisor_and_a_parameter_gathered_from_odd_ranges(tmp_path: Path) -> None:
    with divisor_artifact(tmp_path / "m.ninfer", 2.5) as artifact:
        bound = bind(artifact)
        stored = artifact.tensor("odd").reshape(-1)
        values = bound.values("text/final_norm")
        np.testing.assert_array_equal(values, np.concatenate([stored[3:100], stored[90:121]]))
        np.testing.assert_array_equal(bound.values("text/final_norm", rows=(96, 99)), values[96:99])
        with pytest.raises(ValueError, match="rows"):
            bound.values("text/final_norm", rows=(96, 129))


def divisor_artifact(path: Path, value: float) -> Artifact:
    """The tiny text model with zero weights, one divisor, and a norm put together from ranges that cut rows."""
    plain = path.with_name("plain.ninfer")
    text = Components(tiny_components().text)
    synthesise(plain, text, "direct", {}, seed=0, name="m")
    with Artifact.open(plain) as source:
        directory = source.directory
        planned = [PlannedTensor(o.id, o.shape, o.format) for o in directory.objects]  # type: ignore[union-attr]
        extra = [PlannedTensor("odd", (9, 16), "q5_g64_fp16"), PlannedTensor("divisor", (), "fp32")]
        ranges = Parts((Part("odd", 3, 100), Part("odd", 90, 121)))
        plan = DirectoryPlan(
            directory.components,
            (*planned, *extra),
            rebound(directory, NORM, ranges),
            auxiliary(directory, "activation_input_divisor", "divisor"),
        )
        with ArtifactWriter(path, plan) as writer:
            for stored in directory.objects:
                writer.write(stored.id, 0, source.object_bytes(stored.id))
            writer.write("odd", 0, encode(np.linspace(-1, 1, 144, dtype=np.float32).reshape(9, 16), "q5_g64_fp16"))
            writer.write("divisor", 0, np.array([value], "<f4"))
            writer.publish()
    return Artifact.open(path)


@pytest.mark.parametrize("ids", [[0, 1, 1], [0, 1, 384], [-1, 0, 1]])
def test_token_ids_must_be_distinct_vocabulary_rows(ids: list[int], tiny: Path) -> None:
    with Artifact.open(tiny) as artifact:
        bound = bind(artifact, ("text", "proposal"))
        whole = np.arange(50, dtype=np.int32)
        whole[: len(ids)] = ids
        artifact.tensor = lambda id, rows=None: whole  # type: ignore[method-assign]
        with pytest.raises(ArtifactError, match="distinct"):
            bound.token_ids()


def test_integers_are_not_values(tiny: Path) -> None:
    with Artifact.open(tiny) as artifact, pytest.raises(ValueError, match=r"token_ids\(\)"):
        bind(artifact, ("text", "proposal")).values("proposal/token_ids")


def test_nameless_artifact_is_labelled_by_type(tiny: Path) -> None:
    with changed(tiny, lambda directory: {"metadata": None}) as artifact:
        assert (bind(artifact).name, bind(artifact).target) == (None, "qwen3_5_text")


def test_build_tiny_is_what_is_served(tmp_path: Path) -> None:
    build_tiny(tmp_path / "m.ninfer", seed=1)
    with Artifact.open(tmp_path / "m.ninfer") as artifact:
        assert bind(artifact, ("text", "mtp")).target == "ninfer_tiny_random"


def test_a_config_that_asks_for_billions_of_parameters_is_refused_at_the_first_that_is_missing(tiny: Path) -> None:
    def with_experts(directory: Directory) -> Mapping[str, Any]:
        text = directory.components["text"]
        config = dict(text.config)
        del config["intermediate_size"]
        config |= {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"}
        config |= {"num_experts": 2**32 - 1, "num_experts_per_tok": 8}
        config |= {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
        return {"components": {"text": dataclasses.replace(text, config=config)}}

    with changed(tiny, with_experts) as artifact, pytest.raises(ArtifactError) as raised:
        bind(artifact)
    assert raised.value.code == "PARAMETER_MISSING"

    def with_vision(directory: Directory) -> Mapping[str, Any]:
        config: dict[str, object] = {"model_type": "qwen3_5_vision", "depth": 2**32 - 1, "hidden_size": 64}
        config |= {"intermediate_size": 64, "num_heads": 4, "patch_size": 16, "temporal_patch_size": 2}
        config |= {"spatial_merge_size": 2, "num_position_embeddings": 16}
        vision = Component(config=config, target="text", resources={}, proposal=None)
        return {"components": {**directory.components, "vision": vision}}

    with changed(tiny, with_vision) as artifact, pytest.raises(ArtifactError) as raised:
        bind(artifact, ("text", "vision"))
    assert raised.value.code == "PARAMETER_MISSING"
