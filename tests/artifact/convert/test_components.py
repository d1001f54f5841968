"""Conversion of the optional components: vision tower and block drafters (artifact spec, sections 4.6, 11.1, 12.2)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ninfer.artifact.binder import bind
from ninfer.artifact.config import parse_draft_config, parse_vision_config
from ninfer.artifact.container import Artifact
from ninfer.artifact.convert.convert import Conversion, convert
from ninfer.artifact.frontend import small_frontend
from ninfer.artifact.parameters import Components, logical_parameters
from ninfer.artifact.registered import REGISTERED
from ninfer.artifact.tiny import tiny_components
from ninfer.artifact.verify import verify
from ninfer.errors import ArtifactError
from tests.support.checkpoints import edit_json

TEXT = tiny_components().text
VISION = {
    "model_type": "qwen3_5_vision",
    "depth": 2,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_heads": 4,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 16,
}
DRAFT: dict[str, Any] = {
    "model_type": "qwen3",
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "rms_norm_eps": 9.999999974752427e-07,
    "rope_parameters": {"rope_theta": 10000000.0},
    "max_position_embeddings": 262144,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 64,
}
DFLASH = {
    **DRAFT,
    "architectures": ["DFlashDraftModel"],
    "dflash_config": {"target_layer_ids": [0, 2], "mask_token_id": 337},
}
DFLASH2 = {
    **DRAFT,
    "architectures": ["DFlash2DraftModel"],
    "dflash_config": {
        "target_layer_ids": [1],
        "mask_token_id": 337,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 8,
        "selector_top_k": 4,
    },
}


def components(*, vision: bool = False, drafts: dict[str, dict[str, Any]] | None = None) -> Components:
    return Components(
        text=TEXT,
        vision=parse_vision_config(VISION, "m", TEXT) if vision else None,
        drafts={n: parse_draft_config(c, "m", n, TEXT) for n, c in (drafts or {}).items()},
    )


def save(directory: Path, checkpoint: str, whole: Components) -> dict[str, np.ndarray[Any, Any]]:
    """Write random float32 tensors for one checkpoint of `whole`; returns them."""
    directory.mkdir()
    generator = torch.Generator().manual_seed(len(checkpoint))
    sources = [p.source for p in logical_parameters(whole) if p.source and p.source.checkpoint == checkpoint]
    tensors = {s.tensor: torch.randn(s.shape, generator=generator) for s in sources}
    save_file(tensors, directory / "model.safetensors")
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def save_base(directory: Path, *, vision: bool) -> dict[str, np.ndarray[Any, Any]]:
    tensors = save(directory, "base", components(vision=vision))
    config: dict[str, Any] = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": False,
        "text_config": {k: v for k, v in TEXT.to_json().items() if k != "architectures"},
    }
    if vision:
        # Some releases carry the parent's name.
        fixed = {"in_channels": 3, "hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": []}
        config["vision_config"] = {**VISION, **fixed, "model_type": "qwen3_5", "out_hidden_size": TEXT.hidden_size}
    (directory / "config.json").write_text(json.dumps(config))
    for role, content in small_frontend(vision=vision).items():
        (directory / role).write_bytes(content)
    return tensors


def save_draft(directory: Path, name: str, config: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    tensors = save(directory, name, components(drafts={name: config}))
    extra = {"hidden_size": TEXT.hidden_size, "vocab_size": TEXT.vocab_size, "hidden_act": "silu"}
    (directory / "config.json").write_text(json.dumps({**config, **extra}))
    return tensors


def test_vision(tmp_path: Path) -> None:
    tensors = save_base(tmp_path / "m", vision=True)
    convert(Conversion(tmp_path / "m", "direct", tmp_path / "m.ninfer"))
    with Artifact.open(tmp_path / "m.ninfer") as artifact:
        bound = bind(artifact, ("text", "vision"))
        assert bound.vision == parse_vision_config(VISION, "m", TEXT)
        patch = tensors["model.visual.patch_embed.proj.weight"]
        np.testing.assert_array_equal(bound.values("vision/patch_embedding"), patch.reshape(48, 1536))
        weight, bias = (tensors[f"model.visual.blocks.1.attn.qkv.{part}"] for part in ("weight", "bias"))
        for third, role in enumerate(("query", "key", "value")):
            rows = slice(48 * third, 48 * (third + 1))
            np.testing.assert_array_equal(bound.values(f"vision/layers/1/attention/{role}"), weight[rows])
            np.testing.assert_array_equal(bound.values(f"vision/layers/1/attention/{role}_bias"), bias[rows])
        merger = tensors["model.visual.merger.linear_fc2.weight"]
        np.testing.assert_array_equal(bound.values("vision/merger/fc2"), merger)
        assert (
            bound.resource("vision", "preprocessor_config.json")
            == small_frontend(vision=True)["preprocessor_config.json"]
        )


def test_quantised_vision_is_legal(tmp_path: Path) -> None:
    save_base(tmp_path / "m", vision=True)
    convert(Conversion(tmp_path / "m", "generic_int", tmp_path / "m.ninfer"))
    assert verify(str(tmp_path / "m.ninfer"), values=True) == []


def test_vision_can_be_left_out(tmp_path: Path) -> None:
    save_base(tmp_path / "m", vision=True)
    convert(Conversion(tmp_path / "m", "direct", tmp_path / "m.ninfer", components=("text",)))
    with Artifact.open(tmp_path / "m.ninfer") as artifact:
        assert artifact.directory.components.keys() == {"text"}


@pytest.mark.parametrize(("name", "config"), [("dflash", DFLASH), ("dflash2", DFLASH2)])
def test_drafters(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    save_base(tmp_path / "m", vision=False)
    tensors = save_draft(tmp_path / "draft", name, config)
    convert(Conversion(tmp_path / "m", "direct", tmp_path / "m.ninfer", drafts={name: tmp_path / "draft"}))
    with Artifact.open(tmp_path / "m.ninfer") as artifact:
        bound = bind(artifact, ("text", name))
        assert bound.components.drafts == {name: parse_draft_config(config, "m", name, TEXT)}
        layer = f"{name}/layers/1/"
        for role, source in (("query", "q"), ("key", "k"), ("context_key", "k"), ("context_value", "v")):
            expected = tensors[f"layers.1.self_attn.{source}_proj.weight"]
            np.testing.assert_array_equal(bound.values(f"{layer}attention/{role}"), expected)
        np.testing.assert_array_equal(bound.values(f"{name}/feature_projection"), tensors["fc.weight"])
        if name == "dflash2":
            kernel = tensors["layers.1.mlp_conv.base_kernel"]
            np.testing.assert_array_equal(bound.values(f"{layer}mlp_conv/base_kernel"), kernel)
            book = tensors["candidate_selector.successor_codebook"]
            np.testing.assert_array_equal(bound.values("dflash2/candidate_selector/successor_codebook"), book)


def edit(name: str, **changes: Any) -> Callable[[Path], None]:
    return lambda root: edit_json(root / name, lambda config: {**config, **changes})


def edit_vision(**changes: Any) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        edit_json(root / "m/config.json", lambda c: {**c, "vision_config": {**c["vision_config"], **changes}})

    return damage


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "vision no object": (edit("m/config.json", vision_config=1), "vision_config"),
    "vision type": (edit_vision(model_type="clip"), "vision_config.model_type"),
    "vision channels": (edit_vision(in_channels=1), "in_channels"),
    "vision output": (edit_vision(out_hidden_size=64), "out_hidden_size"),
    "vision heads": (edit_vision(num_heads=5), "heads"),
    "vision depth": (edit_vision(depth=3), r"blocks\.2"),
    "processor patch": (edit("m/preprocessor_config.json", patch_size=14), "patch_size is 14"),
    "processor missing": (lambda root: (root / "m/video_preprocessor_config.json").unlink(), "video_preprocessor"),
    "draft width": (edit("draft/config.json", hidden_size=64), "hidden_size is 64, expected 128"),
    "draft block size": (edit("draft/config.json", block_size=4), "block_size"),
    "draft causal": (edit("draft/config.json", is_causal=True), "is_causal"),
    "draft taps": (
        edit("draft/config.json", dflash_config={**DFLASH["dflash_config"], "target_layer_ids": [4]}),
        "below 4",
    ),
    "draft config": (edit("draft/config.json", dflash_config=None), "dflash_config"),
    "draft window": (edit("draft/config.json", sliding_window=None), "sliding_window"),
    "draft rope": (edit("draft/config.json", rope_parameters=None), "rope_theta"),
    "draft tensor": (edit("draft/config.json", intermediate_size=97), r"layers\.0\.mlp\.gate_proj"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults(case: str, tmp_path: Path) -> None:
    save_base(tmp_path / "m", vision=True)
    save_draft(tmp_path / "draft", "dflash", DFLASH)
    damage, message = FAULTS[case]
    damage(tmp_path)
    with pytest.raises(ArtifactError, match=message) as caught:
        convert(Conversion(tmp_path / "m", "direct", tmp_path / "m.ninfer", drafts={"dflash": tmp_path / "draft"}))
    assert caught.value.code == "BAD_SOURCE"
    assert not (tmp_path / "m.ninfer").exists()


def test_token_ids_of_the_real_vocabulary_are_checked(tmp_path: Path) -> None:
    save_base(tmp_path / "m", vision=True)
    edit("m/config.json", image_token_id=7)(tmp_path)
    # Another vocabulary has its own ids.
    convert(Conversion(tmp_path / "m", "direct", tmp_path / "m.ninfer"))
    edit_json(tmp_path / "m/config.json", lambda c: {**c, "text_config": {**c["text_config"], "vocab_size": 248320}})
    with pytest.raises(ArtifactError, match="image_token_id is 7, expected 248056"):
        convert(Conversion(tmp_path / "m", "direct", tmp_path / "n.ninfer"))


@pytest.mark.parametrize(("depth", "message"), [(26, "use recipe generic_int"), (27, "has shape")])
def test_registered_recipes_want_the_registered_tower(depth: int, message: str, tmp_path: Path) -> None:
    registered = REGISTERED["qwen3_8_27b"].components
    assert registered.vision is not None
    directory = tmp_path / "m"
    directory.mkdir()
    save_file({"model.language_model.embed_tokens.weight": torch.zeros(1)}, directory / "model.safetensors")
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": registered.text.to_json(),
        "vision_config": {**registered.vision.to_json(), "depth": depth},
    }
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArtifactError, match=message):
        convert(Conversion(directory, "qwen3_8_27b", tmp_path / "m.ninfer"))
