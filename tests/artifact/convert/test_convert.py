"""Round trips from checkpoints that `transformers` saved, and the faults a checkpoint can have (sections 11 to 13)."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from ninfer.artifact.binder import BoundArtifact, bind
from ninfer.artifact.container import Artifact
from ninfer.artifact.convert.convert import Conversion, convert
from ninfer.artifact.frontend import small_frontend
from ninfer.artifact.quantise import decode, encode
from ninfer.errors import ArtifactError
from tests.support.checkpoints import edit_json, load_tensors, rewrite_tensors, save_checkpoint, text_config

LAYERS = 4
HEADS, DIM, HIDDEN, KEY, VALUE = 4, 32, 64, 32, 64


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """float32, untied, without MTP, in several shards. Not to be changed by a test."""
    directory = tmp_path_factory.mktemp("checkpoint") / "model"
    save_checkpoint(directory, mtp=False, max_shard_size="300KB")
    return directory


@pytest.fixture(scope="module")
def checkpoint_mtp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bfloat16, untied, with MTP, multimodal names, one file. Not to be changed by a test."""
    directory = tmp_path_factory.mktemp("checkpoint") / "model"
    save_checkpoint(directory, dtype=torch.bfloat16, mtp=True, multimodal_names=True)
    return directory


@pytest.fixture
def scratch(checkpoint_mtp: Path, tmp_path: Path) -> Path:
    """A copy of the second checkpoint to damage."""
    return Path(shutil.copytree(checkpoint_mtp, tmp_path / "scratch"))


def converted(directory: Path, out: Path, recipe: str, **options: Any) -> Artifact:
    convert(Conversion(directory, recipe, out, **options))
    return Artifact.open(out)


def expected_values(tensors: dict[str, Tensor], prefix: str, *, mtp: bool) -> dict[str, np.ndarray[Any, Any]]:
    """Logical parameters made from a checkpoint by hand, as section 12.3 words it."""
    arrays = {name: tensor.float().numpy() for name, tensor in tensors.items()}
    out = {
        "text/token_embedding": arrays[f"{prefix}embed_tokens.weight"],
        "text/final_norm": arrays[f"{prefix}norm.weight"],
    }
    if "lm_head.weight" in arrays:
        out["text/output_head"] = arrays["lm_head.weight"]
    blocks = [(f"text/layers/{i}/", f"{prefix}layers.{i}.") for i in range(LAYERS)]
    if mtp:
        blocks.append(("mtp/layers/0/", "mtp.layers.0."))
        out["mtp/input_projection"] = arrays["mtp.fc.weight"]
        out["mtp/embedding_norm"] = arrays["mtp.pre_fc_norm_embedding.weight"]
        out["mtp/hidden_norm"] = arrays["mtp.pre_fc_norm_hidden.weight"]
        out["mtp/final_norm"] = arrays["mtp.norm.weight"]
    for path, source in blocks:
        out[path + "input_norm"] = arrays[source + "input_layernorm.weight"]
        out[path + "post_attention_norm"] = arrays[source + "post_attention_layernorm.weight"]
        for role in ("gate", "up", "down"):
            out[f"{path}mlp/{role}"] = arrays[f"{source}mlp.{role}_proj.weight"]
        if source + "self_attn.q_proj.weight" in arrays:
            both = arrays[source + "self_attn.q_proj.weight"].reshape(HEADS, 2 * DIM, HIDDEN)
            out[path + "attention/query"] = both[:, :DIM].reshape(HEADS * DIM, HIDDEN)
            out[path + "attention/gate"] = both[:, DIM:].reshape(HEADS * DIM, HIDDEN)
            out[path + "attention/output"] = arrays[source + "self_attn.o_proj.weight"]
            for role in ("key", "value"):
                out[f"{path}attention/{role}"] = arrays[f"{source}self_attn.{role[0]}_proj.weight"]
            for role in ("query", "key"):
                out[f"{path}attention/{role}_norm"] = arrays[f"{source}self_attn.{role[0]}_norm.weight"]
            continue
        gdn, here = path + "gdn/", source + "linear_attn."
        mixed = arrays[here + "in_proj_qkv.weight"]
        out[gdn + "query"], out[gdn + "key"], out[gdn + "value"] = mixed[:KEY], mixed[KEY : 2 * KEY], mixed[2 * KEY :]
        out[gdn + "z"] = arrays[here + "in_proj_z.weight"]
        out[gdn + "a_projection"] = arrays[here + "in_proj_a.weight"]
        out[gdn + "b_projection"] = arrays[here + "in_proj_b.weight"]
        out[gdn + "convolution"] = arrays[here + "conv1d.weight"][:, 0].T
        out[gdn + "a_log"], out[gdn + "dt_bias"] = arrays[here + "A_log"], arrays[here + "dt_bias"]
        out[gdn + "norm"], out[gdn + "output"] = arrays[here + "norm.weight"], arrays[here + "out_proj.weight"]
    return out


def assert_equal(bound: BoundArtifact, expected: dict[str, np.ndarray[Any, Any]]) -> None:
    assert {p.name for p in bound.parameters()} == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(bound.values(name), values, err_msg=name)


def test_direct_conversion_of_float32_is_lossless(checkpoint: Path, tmp_path: Path) -> None:
    with converted(checkpoint, tmp_path / "m.ninfer", "direct") as artifact:
        bound = bind(artifact)
        assert_equal(bound, expected_values(load_tensors(checkpoint), "model.", mtp=False))
        assert {t.format for t in artifact.directory.objects if hasattr(t, "format")} == {"fp32"}
        assert (bound.name, bound.mtp) == ("model", None)
        for role, content in small_frontend().items():
            assert bound.resource("text", role) == content


def test_direct_conversion_of_bfloat16_with_mtp(checkpoint_mtp: Path, tmp_path: Path) -> None:
    with converted(checkpoint_mtp, tmp_path / "m.ninfer", "direct", name="tiny-mtp") as artifact:
        bound = bind(artifact, ("text", "mtp"))
        tensors = load_tensors(checkpoint_mtp)
        assert_equal(bound, expected_values(tensors, "model.language_model.", mtp=True))
        formats = {t.format for t in artifact.directory.objects if hasattr(t, "format")}
        # Only a_log and dt_bias are widened.
        assert formats == {"bf16", "fp32"}
        assert (bound.target, bound.weights_id) == ("tiny_mtp", "bf16")


def test_float16_is_stored_losslessly(tmp_path: Path, checkpoint: Path) -> None:
    directory = Path(shutil.copytree(checkpoint, tmp_path / "half"))
    rewrite_tensors(directory, lambda tensors: {n: t.half() for n, t in tensors.items()})
    with converted(directory, tmp_path / "m.ninfer", "direct") as artifact:
        assert_equal(bind(artifact), expected_values(load_tensors(directory), "model.", mtp=False))


def test_tied_checkpoint_shares_the_embedding(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "tied", tied=True, dtype=torch.bfloat16)
    tensors = load_tensors(tmp_path / "tied")
    assert "lm_head.weight" not in tensors
    with converted(tmp_path / "tied", tmp_path / "m.ninfer", "direct") as artifact:
        bound = bind(artifact)
        assert bound.text.tie_word_embeddings
        assert bound.parameter("text/output_head").parts == bound.parameter("text/token_embedding").parts
        np.testing.assert_array_equal(bound.values("text/output_head"), bound.values("text/token_embedding"))


FORMATS = {
    "text/token_embedding": "q8_g32_fp16",
    "text/layers/3/attention/query": "q4_g64_fp16",
    "text/layers/3/attention/gate": "q5_g64_fp16",
    "text/layers/0/gdn/value": "q5_g64_fp16",
    "text/layers/0/mlp/up": "q4_g64_fp16",
    "mtp/layers/0/attention/value": "q8_g32_fp16",
}


def test_quantised_parents_hold_the_quantised_members(checkpoint_mtp: Path, tmp_path: Path) -> None:
    """Groups run along a row, so a parent's rows are those of its members quantised alone."""
    with converted(checkpoint_mtp, tmp_path / "m.ninfer", "generic_int", proposal_rows=60) as artifact:
        bound = bind(artifact, ("text", "mtp", "proposal"))
        assert bound.weights_id == "groupwise-int"
        expected = expected_values(load_tensors(checkpoint_mtp), "model.language_model.", mtp=True)
        for name, format in FORMATS.items():
            stored = encode(np.ascontiguousarray(expected[name]), format)
            values = decode(stored, format, "row_split_k128_v1", expected[name].shape)
            np.testing.assert_array_equal(bound.values(name), values, err_msg=name)
            np.testing.assert_array_equal(bound.values(name, rows=(3, 17)), values[3:17])
        ids = bound.token_ids()
        head = decode(encode(expected["text/output_head"][ids], "q4_g64_fp16"), "q4_g64_fp16", *row_split(60, HIDDEN))
        np.testing.assert_array_equal(bound.values("proposal/head"), head)


def row_split(*shape: int) -> tuple[str, tuple[int, ...]]:
    return "row_split_k128_v1", shape


def test_ranking_chooses_the_rows(checkpoint_mtp: Path, tmp_path: Path) -> None:
    counts = np.zeros(384, "<i8")
    counts[[7, 300]] = 5, 9
    counts.tofile(tmp_path / "counts.i64")
    options = {"proposal_rows": 30, "ranking": tmp_path / "counts.i64"}
    with converted(checkpoint_mtp, tmp_path / "m.ninfer", "generic_int", **options) as artifact:
        assert bind(artifact, ("text", "proposal")).token_ids()[:2].tolist() == [300, 7]


def test_conversion_is_reproducible_and_split_files_hold_the_same(checkpoint_mtp: Path, tmp_path: Path) -> None:
    with converted(checkpoint_mtp, tmp_path / "a.ninfer", "generic_int") as whole:
        options = {"max_file_bytes": 100_000}
        with converted(checkpoint_mtp, tmp_path / "b.ninfer", "generic_int", **options) as parts:
            assert len(parts.directory.files) > 2
            for stored in whole.directory.objects:
                assert bytes(whole.object_bytes(stored.id)) == bytes(parts.object_bytes(stored.id))


def test_selected_components_only(checkpoint_mtp: Path, tmp_path: Path) -> None:
    with converted(checkpoint_mtp, tmp_path / "m.ninfer", "direct", components=("text",)) as artifact:
        assert set(artifact.directory.components) == {"text"}
        with pytest.raises(ArtifactError, match="COMPONENT_ABSENT"):
            bind(artifact, ("text", "mtp"))


def test_resources_can_come_from_elsewhere(scratch: Path, tmp_path: Path) -> None:
    (scratch / "chat_template.jinja").unlink()
    other = tmp_path / "other.jinja"
    other.write_text("{{ messages }}")
    options = {"resources": {"chat_template.jinja": other}}
    with converted(scratch, tmp_path / "m.ninfer", "direct", **options) as artifact:
        assert artifact.resource("text", "chat_template.jinja") == b"{{ messages }}"


def test_missing_sections_are_derived_only_without_choice(scratch: Path, tmp_path: Path) -> None:
    def strip(config: dict[str, Any]) -> dict[str, Any]:
        text = config["text_config"]
        del text["rope_parameters"]["mrope_section"], text["layer_types"]
        return {**config, "text_config": {**text, "full_attention_interval": 4}}

    edit_json(scratch / "config.json", strip)
    with converted(scratch, tmp_path / "m.ninfer", "direct") as artifact:
        text = bind(artifact).text
        assert text.mrope_section == (2, 1, 1)
        assert text.layer_types == ("linear_attention",) * 3 + ("full_attention",)


@pytest.mark.parametrize("fused", [False, True], ids=["separate", "fused"])
def test_mixture_of_experts(fused: bool, tmp_path: Path) -> None:
    """Releases fuse the experts of a layer into one tensor, `transformers` saves each projection alone."""
    torch.manual_seed(1)
    fields = {
        **text_config().to_dict(),
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
    }
    del fields["model_type"], fields["intermediate_size"]
    model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**fields))
    directory = tmp_path / "moe"
    model.save_pretrained(directory)
    for role, content in small_frontend().items():
        (directory / role).write_bytes(content)
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    path, source = "text/layers/2/moe/", "model.layers.2.mlp."
    assert source + "experts.gate_up_proj" in state
    assert source + "experts.gate_up_proj" not in load_tensors(directory)
    if fused:
        rewrite_tensors(directory, lambda _: state)
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    with converted(directory, tmp_path / "m.ninfer", "direct") as artifact:
        bound = bind(artifact)
        assert bound.text.moe is not None
        both, down = arrays[source + "experts.gate_up_proj"], arrays[source + "experts.down_proj"]
        for e in range(4):
            np.testing.assert_array_equal(bound.values(f"{path}experts/{e}/gate"), both[e, :32])
            np.testing.assert_array_equal(bound.values(f"{path}experts/{e}/up"), both[e, 32:])
            np.testing.assert_array_equal(bound.values(f"{path}experts/{e}/down"), down[e])
        for name, tensor in {
            "router": "gate",
            "shared_score": "shared_expert_gate",
            "shared/down": "shared_expert.down_proj",
        }.items():
            np.testing.assert_array_equal(bound.values(path + name), arrays[f"{source}{tensor}.weight"])


def config_edit(**changes: Any) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        edit_json(directory / "config.json", lambda c: {**c, "text_config": {**c["text_config"], **changes}})

    return damage


def root_edit(**changes: Any) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / "config.json", lambda c: {**c, **changes})


def tensor_edit(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Callable[[Path], None]:
    return lambda directory: rewrite_tensors(directory, change)


def without(*names: str) -> Callable[[Path], None]:
    return tensor_edit(lambda tensors: {n: t for n, t in tensors.items() if n not in names})


def truncate(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def write(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        (directory / name).write_bytes(content)

    return damage


UP = "model.language_model.layers.1.mlp.up_proj.weight"
FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), r"config\.json"),
    "config no json": (write("config.json", b"{"), r"config\.json"),
    "config no object": (write("config.json", b"[]"), "JSON object"),
    "other architecture": (root_edit(architectures=["LlamaForCausalLM"]), "architectures"),
    "other model type": (root_edit(model_type="llama"), "model_type"),
    "text config no object": (root_edit(text_config=1), "text_config"),
    "tied disagrees": (root_edit(tie_word_embeddings=True), "tie_word_embeddings"),
    "missing dimension": (config_edit(hidden_size=None), "hidden_size"),
    "wrong dimension": (config_edit(intermediate_size=100), "mlp.gate_proj"),
    "activation": (config_edit(hidden_act="gelu"), "hidden_act"),
    "attention bias": (config_edit(attention_bias=True), "attention_bias"),
    "two mtp layers": (config_edit(mtp_num_hidden_layers=2), "mtp_num_hidden_layers"),
    "rope scaling": (config_edit(rope_parameters={"rope_type": "yarn"}), "rope_type"),
    "no rope": (config_edit(rope_parameters=None), "rope_parameters"),
    "no layer types": (config_edit(layer_types=None), "layer_types"),
    "layer types too short": (config_edit(layer_types=["full_attention"]), "layer_types"),
    "rotary stated twice": (config_edit(partial_rotary_factor=0.5), "partial_rotary_factor"),
    "missing tensor": (without(UP), UP),
    "missing mtp tensor": (without("mtp.norm.weight"), "mtp.norm.weight"),
    "missing embedding": (without("model.language_model.embed_tokens.weight"), "embed_tokens"),
    "missing head": (without("lm_head.weight"), "lm_head.weight"),
    "wrong shape": (tensor_edit(lambda t: {**t, UP: t[UP][:-1].clone()}), r"shape \[95, 64\], expected \[96, 64\]"),
    "wrong dtype": (tensor_edit(lambda t: {**t, UP: t[UP].int()}), "dtype I32"),
    "truncated": (truncate, "past the end"),
    "not safetensors": (write("model.safetensors", b"\xff" * 64), "header"),
    "short file": (write("model.safetensors", b"abc"), "header"),
    "header no json": (write("model.safetensors", b"\x04" + b"\0" * 7 + b"{{{{"), "malformed"),
    "header without offsets": (write("model.safetensors", b"\x08" + b"\0" * 7 + b'{"a":{}}'), "malformed"),
    "no tensors": (lambda d: (d / "model.safetensors").unlink(), "holds neither"),
    "shard missing": (
        write("model.safetensors.index.json", json.dumps({"weight_map": {"a": "x.safetensors"}}).encode()),
        r"x\.safetensors",
    ),
    "shard path": (
        write("model.safetensors.index.json", json.dumps({"weight_map": {"a": "../x.safetensors"}}).encode()),
        "plain file name",
    ),
    "shard lacks tensor": (
        write("model.safetensors.index.json", json.dumps({"weight_map": {"a": "model.safetensors"}}).encode()),
        "not in this file",
    ),
    "index without map": (write("model.safetensors.index.json", b"{}"), "weight_map"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), r"tokenizer\.json.*--resource tokenizer\.json="),
    "no tokenizer config": (lambda d: (d / "tokenizer_config.json").unlink(), r"tokenizer_config\.json"),
    "no template": (lambda d: (d / "chat_template.jinja").unlink(), r"chat_template\.jinja"),
    "empty template": (write("chat_template.jinja", b""), "empty"),
    "no generation config": (lambda d: (d / "generation_config.json").unlink(), r"generation_config\.json"),
    "generation config no json": (write("generation_config.json", b"x"), r"generation_config\.json"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_are_found_before_anything_is_written(case: str, scratch: Path, tmp_path: Path) -> None:
    damage, message = FAULTS[case]
    damage(scratch)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ArtifactError, match=message) as caught:
        convert(Conversion(scratch, "generic_int", out / "m.ninfer"))
    assert caught.value.code == "BAD_SOURCE"
    assert list(out.iterdir()) == []


def test_values_that_cannot_be_encoded_leave_nothing_behind(scratch: Path, tmp_path: Path) -> None:
    rewrite_tensors(scratch, lambda tensors: {**tensors, UP: torch.full_like(tensors[UP], torch.nan)})
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ArtifactError, match=r"text/layers/1/mlp/gate, text/layers/1/mlp/up: ") as caught:
        convert(Conversion(scratch, "generic_int", out / "m.ninfer"))
    assert caught.value.code == "BAD_SOURCE_VALUE"
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "qwen3_8_27b"}, "use recipe generic_int"),
        ({"recipe": "qwen3_6_35b_a3b"}, "no recipe 'qwen3_6_35b_a3b' for a dense model"),
        ({"components": ("text", "vision")}, "no component vision"),
        ({"components": ("text", "dflash2")}, "--source dflash2=DIR"),
        ({"proposal_rows": 1000}, "draft head of 1000 rows"),
        ({"resources": {"preprocessor_config.json": Path("x")}}, "belongs to no component"),
    ],
)
def test_requests_that_do_not_fit(checkpoint_mtp: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=message) as caught:
        convert(Conversion(checkpoint_mtp, **{"recipe": "generic_int", "out": tmp_path / "m.ninfer", **options}))
    assert caught.value.code == "BAD_SOURCE"


def test_imported_recipes_are_refused(checkpoint_mtp: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="UNSUPPORTED"):
        convert(Conversion(checkpoint_mtp, "qwen3_8_27b_nvfp4", tmp_path / "m.ninfer"))


def test_existing_output_is_kept(checkpoint_mtp: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.ninfer"
    out.write_bytes(b"mine")
    with pytest.raises(ArtifactError, match="OUTPUT_EXISTS"):
        convert(Conversion(checkpoint_mtp, "direct", out))
    assert hashlib.sha256(out.read_bytes()).digest() == hashlib.sha256(b"mine").digest()


def test_progress_reaches_the_payload(checkpoint_mtp: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert(Conversion(checkpoint_mtp, "direct", tmp_path / "m.ninfer"), lambda *step: seen.append(step))
    assert seen == sorted(seen)
    done, total = seen[-1]
    # What is missing are resources and the gaps between objects.
    assert 0.5 * total < done <= total
