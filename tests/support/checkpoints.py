"""Small random checkpoints in Hugging Face form, as `transformers` saves them, with the frontend files beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from ninfer.artifact.config import interleaved_sections
from ninfer.artifact.frontend import small_frontend, smallest_public_tokens


def text_config(**overrides: Any) -> Qwen3_5TextConfig:
    """A four-layer config (three GDN, one attention); any field of the text config can be overridden.

    `mrope_section` follows from `head_dim`, and `layer_types` from `num_hidden_layers`, unless they are given.
    """
    fields: dict[str, Any] = {
        "vocab_size": -(-(smallest_public_tokens() + 1) // 64) * 64,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        **overrides,
    }
    layers = fields["num_hidden_layers"]
    fields.setdefault("layer_types", ["linear_attention" if (i + 1) % 4 else "full_attention" for i in range(layers)])
    pairs = fields["head_dim"] // 8
    fields.setdefault(
        "rope_parameters",
        {
            "rope_type": "default",
            "rope_theta": 10000000.0,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": list(interleaved_sections(pairs, (pairs, pairs, pairs))),
        },
    )
    return Qwen3_5TextConfig(**fields)


def save_checkpoint(
    directory: Path,
    *,
    config: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    tied: bool = False,
    seed: int = 0,
    mtp: bool = False,
    multimodal_names: bool = False,
    max_shard_size: str = "5GB",
) -> Qwen3_5ForCausalLM:
    """Save a random Qwen3_5ForCausalLM with its tokenizer files into `directory`, which is created.

    config             overrides of :func:`text_config`
    tied               share embedding and head (`tie_word_embeddings`)
    mtp                add the fifteen `mtp.*` tensors, which the class itself does not have
    multimodal_names   name tensors `model.language_model.…` and nest the config, as the multimodal releases do
    returns            the model that was saved, in `dtype`, in evaluation mode
    Norms, `A_log` and `dt_bias` are away from their defaults, so that a wrong offset shows.
    """
    torch.manual_seed(seed)
    model_config = text_config(**{**(config or {}), "tie_word_embeddings": tied})
    model = Qwen3_5ForCausalLM(model_config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_initial(name, parameter.shape))
    model = model.to(dtype)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    extra = _mtp_tensors(model_config, dtype) if mtp else {}
    if extra or multimodal_names:
        _rewrite(directory, extra, multimodal_names=multimodal_names)
    if mtp or multimodal_names:
        _edit_config(directory, mtp=mtp, multimodal=multimodal_names)
    for role, content in small_frontend().items():
        (directory / role).write_bytes(content)
    return model


def _initial(name: str, shape: torch.Size) -> Tensor:
    if name.endswith("A_log"):
        return torch.empty(shape).uniform_(1.0, 8.0).log()
    if name.endswith("dt_bias"):
        return torch.empty(shape).uniform_(-4.0, -1.0)
    if len(shape) == 1:
        centre = 1.0 if name.endswith("linear_attn.norm.weight") else 0.0
        return centre + 0.2 * torch.randn(shape)
    if name.endswith("conv1d.weight"):
        return 0.5 * torch.randn(shape)
    if "embed_tokens" in name or "lm_head" in name:
        return 0.3 * torch.randn(shape)
    return torch.randn(shape) / shape[-1] ** 0.5


def _mtp_tensors(config: Qwen3_5TextConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, kv = config.num_attention_heads * dim, config.num_key_value_heads * dim
    layer = "mtp.layers.0."
    shapes: dict[str, tuple[int, ...]] = {
        "mtp.fc.weight": (hidden, 2 * hidden),
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (hidden,),
        "mtp.norm.weight": (hidden,),
        layer + "input_layernorm.weight": (hidden,),
        layer + "post_attention_layernorm.weight": (hidden,),
        layer + "self_attn.q_proj.weight": (2 * query, hidden),
        layer + "self_attn.k_proj.weight": (kv, hidden),
        layer + "self_attn.v_proj.weight": (kv, hidden),
        layer + "self_attn.o_proj.weight": (hidden, query),
        layer + "self_attn.q_norm.weight": (dim,),
        layer + "self_attn.k_norm.weight": (dim,),
        layer + "mlp.gate_proj.weight": (inner, hidden),
        layer + "mlp.up_proj.weight": (inner, hidden),
        layer + "mlp.down_proj.weight": (hidden, inner),
    }
    return {name: _initial(name, torch.Size(shape)).to(dtype) for name, shape in shapes.items()}


def load_tensors(directory: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint directory, shards merged."""
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def rewrite_tensors(directory: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Replace the checkpoint's tensors by what `change` makes of them, in one file."""
    tensors = change(load_tensors(directory))
    for file in [*directory.glob("*.safetensors"), *directory.glob("*.index.json")]:
        file.unlink()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _rewrite(directory: Path, extra: dict[str, Tensor], *, multimodal_names: bool) -> None:
    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if multimodal_names:
            tensors = {
                f"model.language_model.{n.removeprefix('model.')}" if n.startswith("model.") else n: t
                for n, t in tensors.items()
            }
        return {**tensors, **extra}

    rewrite_tensors(directory, change)


def edit_json(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Replace the object in a JSON file by what `change` makes of it."""
    path.write_text(json.dumps(change(json.loads(path.read_text())), indent=2))


def _edit_config(directory: Path, *, mtp: bool, multimodal: bool) -> None:
    def change(config: dict[str, Any]) -> dict[str, Any]:
        if mtp:
            config = {**config, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
        if not multimodal:
            return config
        return {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "tie_word_embeddings": config["tie_word_embeddings"],
            "text_config": {k: v for k, v in config.items() if k != "architectures"},
        }

    edit_json(directory / "config.json", change)
