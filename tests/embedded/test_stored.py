"""What the artifact holds is what the last part of training has used, and the engine computes with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ninfer.artifact.binder import bind
from ninfer.artifact.container import Artifact
from ninfer.artifact.convert.convert import Conversion, convert
from ninfer.config import EngineSettings
from ninfer.embedded.answers import answer
from ninfer.embedded.stored import load_network
from ninfer.embedded.training.delta_rule import chunked
from ninfer.embedded.training.dimensions import Dimensions
from ninfer.embedded.training.export import save_checkpoint
from ninfer.embedded.training.network import Network, Routes
from ninfer.embedded.training.packed_attention import Documents, masked
from ninfer.embedded.training.vocabulary import frontend, train_bpe
from ninfer.engine.engine import Engine

SMALL = Dimensions(
    vocabulary=400, hidden=128, layers=4, intermediate=128, heads=2, head_dim=64, key_heads=2, value_heads=4, gdn_dim=64
)


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(5)
    net = Network(SMALL)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif not parameter.any():
                parameter.add_(torch.randn_like(parameter) * 0.05)
            # What bf16 holds exactly, so that the checkpoint loses nothing.
            parameter.copy_(parameter.bfloat16())
            assert parameter.any(), name
    return net.eval()


@pytest.fixture(scope="module")
def artifact(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(network, directory)
    texts = ["the cat sat on the mat and the dog sat on the log " * 3, "one two three four five six seven eight nine"]
    for role, content in frontend(*train_bpe(texts, 310)).items():
        (directory / role).write_bytes(content)
    out = directory / "small.ninfer"
    convert(Conversion(model=directory, recipe="generic_int", out=out), lambda done, total: None)
    return out


def test_rounded_weights_are_the_stored_ones(network: Network, artifact: Path):
    with Artifact.open(artifact) as opened:
        stored = dict(load_network(bind(opened, ("text", "mtp"))).named_modules())
    network.round_weights(1.0)
    for name, module in network.named_modules():
        if hasattr(module, "rounded"):
            assert torch.allclose(module.rounded(), stored[name].weight, rtol=1e-6, atol=1e-9), name
        elif hasattr(module, "weight"):
            assert torch.equal(module.weight, stored[name].weight), name
    network.round_weights(0.0)


def test_the_engine_answers_as_the_network(artifact: Path):
    with Artifact.open(artifact) as opened:
        net = load_network(bind(opened, ("text", "mtp")))
        engine = Engine.load(bind(opened), EngineSettings(max_context_tokens=1024, kv_capacity_tokens=1024), 320)
        torch.manual_seed(6)
        prompt = torch.randint(0, 305, (100,)).tolist()
        generated = answer(engine, prompt, frozenset(), 20)
    assert len(generated.ids) == 20
    ids = torch.tensor(prompt + list(generated.ids) + [0] * 8)
    with torch.inference_mode():
        h, _ = net(ids, Documents.at(1, torch.arange(128)), Routes(chunked, masked), torch.float32)
        logits = (h @ net.head().T)[99:119, :320]
    # The engine keeps its KV in bf16; only a near tie may be decided otherwise.
    best = logits.max(-1).values
    chosen = logits.gather(-1, torch.tensor(generated.ids).unsqueeze(-1)).squeeze(-1)
    assert (best - chosen).max() < 0.02 * logits.std()


def test_an_answer_ends_before_its_stop_token(artifact: Path):
    with Artifact.open(artifact) as opened:
        settings = EngineSettings(max_context_tokens=1024, kv_capacity_tokens=1024)
        engine = Engine.load(bind(opened), settings, 320)
        free = answer(engine, [1, 2, 3], frozenset(), 6)
        stop = free.ids[3]
        stopped = answer(engine, [1, 2, 3], frozenset([stop]), 6)
    assert stopped.ids == free.ids[: free.ids.index(stop)]
