"""A trained network as a checkpoint directory in the family's names, bf16, in shards that travel one by one."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from ninfer.embedded.training.network import Network

SHARD_BYTES = 15 << 20


def checkpoint_tensors(network: Network) -> dict[str, Tensor]:
    """bf16 tensors by name; the head is the embedding and is not stored."""
    return {name: p.detach().bfloat16().cpu().contiguous() for name, p in network.named_parameters()}


def save_checkpoint(network: Network, directory: Path) -> None:
    """Write shards of at most 15 MiB, their index and config.json into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = [{}]
    room = SHARD_BYTES
    for name, tensor in checkpoint_tensors(network).items():
        if tensor.nbytes > room:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = tensor
        room -= tensor.nbytes
    index: dict[str, str] = {}
    total = 0
    for n, shard in enumerate(shards, 1):
        file = f"model-{n:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, directory / file, metadata={"format": "pt"})
        index |= dict.fromkeys(shard, file)
        total += sum(tensor.nbytes for tensor in shard.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1)
    (directory / "model.safetensors.index.json").write_text(text)
    (directory / "config.json").write_text(network.dimensions.config_json())
