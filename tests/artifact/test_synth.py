"""Synthetic artifacts: registered shapes, legal codes, determinism (design, section 5)."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from ninfer.artifact import synth
from ninfer.artifact.binder import bind
from ninfer.artifact.config import MoeConfig
from ninfer.artifact.container import Artifact
from ninfer.artifact.directory import TensorObject
from ninfer.artifact.formats import find_format, row_split
from ninfer.artifact.frontend import CONTROL_TOKENS, small_frontend, smallest_public_tokens
from ninfer.artifact.layouts import unpack_grouped
from ninfer.artifact.parameters import Components, logical_parameters
from ninfer.artifact.registered import REGISTERED
from ninfer.artifact.synth import registered_components
from ninfer.artifact.tiny import build_tiny, tiny_components
from ninfer.artifact.verify import verify
from ninfer.errors import ArtifactError
from tests.artifact.test_parameters import DENSE, MOE, dense_components, moe_components


def narrow(recipe: str) -> Components:
    """A registered model with its layer pattern and components, but narrow enough for a test."""
    whole = registered_components(recipe, None, 4)
    text = dataclasses.replace(
        whole.text,
        hidden_size=256,
        vocab_size=1024,
        heads=4,
        kv_heads=2,
        head_dim=64,
        mrope_section=(3, 3, 2),
        gdn_key_heads=2,
        gdn_value_heads=4,
        gdn_key_dim=64,
        gdn_value_dim=64,
        intermediate_size=None if whole.text.moe else 384,
        moe=MoeConfig(4, 2, 128, 128) if whole.text.moe else None,
    )
    assert whole.vision is not None
    # Widths that are no multiple of 128 make padding, as the real tower's 4304 does.
    vision = dataclasses.replace(whole.vision, depth=1, hidden_size=96, intermediate_size=200, num_heads=4)
    return dataclasses.replace(whole, text=text, vision=vision, proposal_rows=300)


def synthesised(path: Path, recipe: str, *, seed: int = 1, threads: int | None = None) -> Path:
    frontend = small_frontend(vision=True)
    synth.synthesise(path, narrow(recipe), recipe, frontend, seed=seed, name="narrow", threads=threads)
    return path


def test_registered_models_are_those_of_the_spec() -> None:
    assert REGISTERED["qwen3_8_27b"].components == dense_components(dflash2=True)
    assert REGISTERED["qwen3_6_27b"].components == dense_components()
    assert REGISTERED["qwen3_6_35b_a3b"].components == moe_components()
    assert (DENSE.hidden_size, MOE.hidden_size) == (5120, 2048)


@pytest.mark.parametrize("recipe", REGISTERED)
def test_every_stored_value_is_legal(recipe: str, tmp_path: Path) -> None:
    assert verify(str(synthesised(tmp_path / "m.ninfer", recipe)), values=True) == []


@pytest.mark.parametrize("recipe", REGISTERED)
def test_every_recipe_binds_and_is_well_scaled(recipe: str, tmp_path: Path) -> None:
    path = synthesised(tmp_path / "m.ninfer", recipe)
    with Artifact.open(path) as artifact:
        bound = bind(artifact, ("text", "vision", "mtp", "proposal"))
        assert len(bound.parameters()) == len(logical_parameters(narrow(recipe)))
        for parameter in bound.parameters():
            if parameter.name == "proposal/token_ids":
                continue
            values = bound.values(parameter.name)
            assert np.isfinite(values).all(), parameter.name
            if len(parameter.shape) == 2 and parameter.shape[0] >= 64 and "embedding" not in parameter.name:
                gain = float(values.std()) * parameter.shape[1] ** 0.5
                assert 0.27 < gain < 3.3, (parameter.name, gain)
                assert abs(float(values.mean())) < 0.1 * float(values.std()), parameter.name


def test_codes_and_padding_are_legal(tmp_path: Path) -> None:
    path = synthesised(tmp_path / "m.ninfer", "qwen3_6_27b")
    seen = set()
    with Artifact.open(path) as artifact:
        for stored in artifact.directory.objects:
            if not isinstance(stored, TensorObject) or not find_format(stored.format).is_grouped:
                continue
            entry = find_format(stored.format)
            seen.add(entry.name)
            planes = row_split(entry, stored.shape)
            data = np.frombuffer(artifact.object_bytes(stored.id), np.uint8)
            codes, scales = unpack_grouped(data, entry, stored.shape, (0, stored.shape[0]))
            assert codes.min() >= entry.qmin
            assert codes.max() <= entry.qmax
            lanes = codes.reshape(stored.shape[0], -1)
            assert not lanes[:, stored.shape[1] :].any()
            assert not scales[:, planes.real_groups :].any()
            assert (scales[:, : planes.real_groups] != 0).all()
            for begin, end in (
                (planes.rows * planes.base_row, planes.high_offset),
                (planes.high_offset + planes.rows * planes.high_row, planes.scale_offset),
            ):
                assert not data[begin:end].any()
    assert seen == {"q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"}


def test_bytes_depend_on_the_seed_and_on_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninfer.artifact.randomise.BLOCK_BYTES", 4096)
    first = synthesised(tmp_path / "a.ninfer", "qwen3_8_27b", threads=1).read_bytes()
    assert synthesised(tmp_path / "b.ninfer", "qwen3_8_27b", threads=4).read_bytes() == first
    other = synthesised(tmp_path / "c.ninfer", "qwen3_8_27b", seed=2).read_bytes()
    assert other[16:32] != first[16:32]
    assert len(other) == len(first)
    assert other[-100_000:] != first[-100_000:]


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    synth.add_arguments(parser)
    return parser.parse_args(words)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synth, "registered_components", lambda model, names, layers: narrow(model))
    out = tmp_path / "m.ninfer"
    assert synth.run(parsed("--model", "qwen3_8_27b", "--seed", "3", "--out", str(out))) == 0
    assert str(out) in capsys.readouterr().out
    with Artifact.open(out) as artifact:
        vocabulary = json.loads(artifact.resource("text", "tokenizer.json"))
        ids = {entry["content"]: entry["id"] for entry in vocabulary["added_tokens"]}
        # The published ids, so that tests at true shapes use true token ids.
        assert (ids["<|endoftext|>"], ids["<|im_end|>"], ids["<|audio_pad|>"]) == (248044, 248046, 248076)
        assert json.loads(artifact.resource("text", "generation_config.json"))["eos_token_id"] == [248046, 248044]
        assert json.loads(artifact.resource("vision", "preprocessor_config.json"))["patch_size"] == 16
        assert artifact.directory.metadata == {"name": "qwen3.8-27b"}


def test_command_takes_a_frontend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synth, "registered_components", lambda model, names, layers: narrow(model))
    directory = tmp_path / "frontend"
    directory.mkdir()
    words = ["--model", "qwen3_6_27b", "--out", str(tmp_path / "m.ninfer"), "--frontend", str(directory)]
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        synth.run(parsed(*words))
    for role, content in small_frontend(vision=True).items():
        (directory / role).write_bytes(content)
    assert synth.run(parsed(*words)) == 0
    (directory / "tokenizer.json").write_bytes(b'{"model": {"vocab": {"a": 0}}}')
    (directory / "tokenizer_config.json").write_bytes(b"{}")
    with pytest.raises(ArtifactError, match="draft head of 300 rows"):
        synth.run(parsed(*words))
    (directory / "chat_template.jinja").write_bytes(b"")
    with pytest.raises(ArtifactError, match="empty"):
        synth.run(parsed(*words))


@pytest.mark.parametrize(
    "words",
    [
        ["--model", "llama"],
        ["--model", "qwen3_6_27b", "--seed", "-1"],
        ["--model", "qwen3_6_27b", "--components", "mtp"],
        ["--model", "qwen3_6_27b", "--components", "text,audio"],
        ["--model", "qwen3_6_27b", "--components", "text,dflash2"],
        ["--model", "qwen3_8_27b", "--components", "text,dflash2", "--layers", "8"],
        ["--model", "qwen3_6_27b", "--layers", "65"],
        ["--model", "qwen3_6_27b", "--layers", "0"],
    ],
)
def test_command_line_faults(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        synth.run(parsed(*words, "--out", str(tmp_path / "m.ninfer")))
    assert caught.value.code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_cut_keeps_what_it_can() -> None:
    cut = synth.registered_components("qwen3_8_27b", None, 8)
    assert (cut.text.num_layers, cut.drafts) == (8, {})
    assert synth.registered_components("qwen3_8_27b", None, 62).drafts.keys() == {"dflash2"}
    only = synth.registered_components("qwen3_8_27b", ("text", "mtp"), None)
    assert (only.vision, only.drafts, only.proposal_rows) == (None, {}, None)
    assert only.mtp is not None


def test_tiny_artifact(tmp_path: Path) -> None:
    build_tiny(tmp_path / "a.ninfer", seed=4)
    build_tiny(tmp_path / "b.ninfer", seed=4)
    assert verify(str(tmp_path / "a.ninfer"), values=True) == []
    assert (tmp_path / "a.ninfer").read_bytes() == (tmp_path / "b.ninfer").read_bytes()
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        bound = bind(artifact, ("text", "mtp"))
        assert bound.text == tiny_components().text
        vocabulary = json.loads(bound.resource("text", "tokenizer.json"))
        spellings = [entry["content"] for entry in vocabulary["added_tokens"]]
        assert tuple(spellings) == CONTROL_TOKENS
        assert [entry["id"] for entry in vocabulary["added_tokens"]] == list(
            range(smallest_public_tokens() - 33, smallest_public_tokens())
        )
        assert smallest_public_tokens() < bound.text.vocab_size


def test_vocabulary_sizes() -> None:
    with pytest.raises(ValueError, match="at least"):
        small_frontend(public_tokens=smallest_public_tokens() - 1)
    with pytest.raises(ValueError, match="base entries"):
        small_frontend(public_tokens=10**6)
