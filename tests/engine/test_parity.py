"""The engine against `transformers` on random checkpoints: the same greedy tokens, whatever the chunk or the company.

Each configuration is one checkpoint, converted with a recipe and served from the artifact. Prompts are chosen so that
no drawn token is a near tie (`MARGIN`), hence equality of tokens is a fair demand; it is never loosened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM

from ninfer.artifact.binder import BoundArtifact, bind
from ninfer.artifact.container import Artifact
from ninfer.artifact.convert.convert import Conversion, convert
from ninfer.artifact.parameters import logical_parameters
from ninfer.config import EngineSettings
from ninfer.engine.engine import Engine
from tests.engine.driving import BLOCK, Driver, assert_same, generate, random_prompt
from tests.support.checkpoints import save_checkpoint

TOKENS = 48
CHUNKS = (64, 128, 256, 1024)
LOG_PROBABILITY = 1e-3  # the bound with an fp32 cache
MARGIN = 2e-3  # least distance between the two largest logits of any drawn token

FULL, LINEAR = "full_attention", "linear_attention"


@dataclass(frozen=True)
class Case:
    """A checkpoint and four prompts for it; `reserved` rows of the vocabulary are not ids."""

    name: str
    config: dict[str, Any]
    lengths: tuple[int, int, int, int]
    seed: int = 0
    tied: bool = False
    reserved: int = 0
    recipe: str = "direct"
    vocab: int = field(default=311)


CASES = (
    Case("default", {}, (1, 63, 130, 700), seed=1),
    Case("tied", {}, (2, 64, 65, 300), tied=True),
    Case("one_kv_head", {"num_attention_heads": 4, "num_key_value_heads": 1}, (3, 127, 128, 129)),
    Case(
        "all_heads_kv", {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 64}, (4, 191, 17, 256), seed=4
    ),
    Case("six_to_one", {"num_attention_heads": 6, "num_key_value_heads": 1}, (5, 33, 320, 90)),
    Case("value_ratio_3", {"linear_num_key_heads": 2, "linear_num_value_heads": 6}, (6, 62, 192, 401), reserved=7),
    Case("value_ratio_1", {"linear_num_key_heads": 3, "linear_num_value_heads": 3}, (7, 66, 257, 100), tied=True),
    Case("odd_widths", {"hidden_size": 80, "intermediate_size": 211}, (8, 61, 193, 255), vocab=523),
    Case("head_dim_96", {"head_dim": 96, "num_attention_heads": 2, "num_key_value_heads": 1}, (9, 59, 120, 449)),
    Case(
        "two_to_one",
        {"num_hidden_layers": 5, "layer_types": [LINEAR, LINEAR, FULL, LINEAR, FULL]},
        (10, 67, 140, 383),
        seed=1,
    ),
    Case(
        "attention_first",
        {"num_hidden_layers": 2, "layer_types": [FULL, LINEAR]},
        (11, 58, 577, 80),
        seed=2,
        reserved=1,
    ),
    Case("attention_only", {"num_hidden_layers": 2, "layer_types": [FULL, FULL]}, (12, 57, 210, 330), seed=1),
    Case("gdn_mostly", {"num_hidden_layers": 6, "layer_types": [FULL, *[LINEAR] * 5]}, (13, 190, 64, 641)),
    Case(
        "unequal_gdn_dims",
        {"linear_key_head_dim": 24, "linear_value_head_dim": 40, "linear_conv_kernel_dim": 3},
        (14, 75, 128, 350),
        seed=2,
        tied=True,
    ),
    Case("quantised", {"hidden_size": 128, "intermediate_size": 192}, (15, 65, 150, 310), seed=2, recipe="generic_int"),
    Case(
        "quantised_odd",
        {"hidden_size": 80, "intermediate_size": 211, "linear_num_value_heads": 6},
        (16, 64, 129, 222),
        recipe="generic_int",
        tied=True,
    ),
)


@dataclass(frozen=True)
class Subject:
    case: Case
    model: Qwen3_5ForCausalLM
    bound: BoundArtifact
    public_ids: int
    prompts: list[list[int]]

    def engine(self, **settings: Any) -> Engine:
        fields: dict[str, Any] = {
            "max_context_tokens": 1024,
            "kv_capacity_tokens": 4096,
            "lanes": 4,
            "kv_dtype": "fp32",
        }
        return Engine.load(self.bound, EngineSettings(**(fields | settings)), self.public_ids)


@contextmanager
def subject(case: Case, directory: Path) -> Iterator[Subject]:
    config = {"vocab_size": case.vocab, **case.config}
    model = save_checkpoint(directory / "model", config=config, seed=case.seed, tied=case.tied)
    out = directory / "model.ninfer"
    convert(Conversion(directory / "model", case.recipe, out))
    with Artifact.open(out) as artifact:
        bound = bind(artifact)
        if case.recipe != "direct":
            dequantise(model, bound)
        public = case.vocab - case.reserved
        prompts = [random_prompt(length, public, case.seed * 8 + i) for i, length in enumerate(case.lengths)]
        yield Subject(case, model, bound, public, prompts)


def dequantise(model: Qwen3_5ForCausalLM, bound: BoundArtifact) -> None:
    """Put the artifact's decoded values into the model's tensors."""
    state = model.state_dict()
    for parameter in logical_parameters(bound.components, "model."):
        source = parameter.source
        assert source is not None
        values = torch.from_numpy(bound.values(parameter.name).copy())
        target = state[source.tensor]
        if source.taps_first:
            target.copy_(values.t().unsqueeze(1))
        elif source.rows is None:
            target.copy_(values)
        else:
            blocks = source.rows
            for i in range(blocks.count):
                first = blocks.begin + i * blocks.stride
                target[first : first + blocks.length] = values[i * blocks.length : (i + 1) * blocks.length]


@torch.no_grad()
def transformers_tokens(subject: Subject, prompt: list[int]) -> list[int]:
    """Greedy generation with its own cache, one token at a time."""
    model, public = subject.model, subject.public_ids
    tokens: list[int] = []
    output = model(torch.tensor([prompt]), use_cache=True)
    while True:
        tokens.append(int(output.logits[0, -1, :public].argmax()))
        if len(tokens) == TOKENS:
            return tokens
        output = model(torch.tensor([tokens[-1:]]), cache=output.cache, use_cache=True)


@torch.no_grad()
def transformers_logits(subject: Subject, prompt: list[int], tokens: list[int]) -> Tensor:
    """Logits [TOKENS, ids] of one pass over the prompt and what was drawn."""
    ids = torch.tensor([prompt + tokens[:-1]])
    logits: Tensor = subject.model(ids).logits
    return logits[0, len(prompt) - 1 :, : subject.public_ids]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_parity(case: Case, tmp_path: Path) -> None:
    with subject(case, tmp_path) as it:
        engine = it.engine()
        together = generate(engine, it.prompts, TOKENS, 1024)
        for prompt, generation in zip(it.prompts, together, strict=True):
            expected = transformers_logits(it, prompt, generation.tokens)
            best = expected.topk(2).values
            assert float((best[:, 0] - best[:, 1]).min()) > MARGIN, "a near tie: choose another seed"
            assert generation.tokens == transformers_tokens(it, prompt)
            distance = (torch.stack(generation.logits).log_softmax(-1) - expected.log_softmax(-1)).abs().max()
            assert float(distance) < LOG_PROBABILITY

        # One pass over what was drawn says the same as generation step by step; one prompt shows it, as steps are slow.
        stepwise = CASES.index(case) % 4
        assert together[stepwise].tokens == transformers_tokens(it, it.prompts[stepwise])

        # Alone, in another lane, on other pages, by other chunks: the same bits.
        for i, chunk in enumerate(CHUNKS):
            driver = Driver(engine, seed=i + 1)
            lane = (i + 1) % 4
            alone = {lane: driver.prefill(lane, it.prompts[i], chunk)}
            driver.decode(alone, TOKENS - 1)
            assert_same(alone[lane], together[i])

        # What was decoded is read again as a prompt: the same bits once more, wherever the prompt ends in a block.
        longest = max(range(4), key=lambda i: len(it.prompts[i]))
        history = it.prompts[longest] + together[longest].tokens
        for drawn, chunk in ((1, 64), (BLOCK // 2, 128), (TOKENS - 2, 256), (TOKENS - 1, 1024)):
            again = Driver(engine, seed=9).prefill(0, history[: len(it.prompts[longest]) + drawn], chunk)
            assert again.tokens[0] == together[longest].tokens[drawn]
            assert torch.equal(again.logits[0], together[longest].logits[drawn])


@pytest.mark.parametrize(("compute", "kv"), [("fp32", "bf16"), ("bf16", "bf16")])
def test_same_bits_in_reduced_precision(compute: str, kv: str, tmp_path: Path) -> None:
    with subject(CASES[0], tmp_path) as it:
        engine = it.engine(compute_dtype=compute, kv_dtype=kv)
        together = generate(engine, it.prompts, TOKENS, 1024)
        for i, chunk in enumerate(CHUNKS):
            (alone,) = generate(engine, [it.prompts[i]], TOKENS, chunk, seed=i + 1)
            assert_same(alone, together[i])
            history = it.prompts[i] + together[i].tokens[:-1]
            (again,) = generate(engine, [history], 1, chunk)
            assert torch.equal(again.logits[0], together[i].logits[-1])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_parity_at_every_length(case: Case, tmp_path: Path) -> None:
    """Prompts of 1 to 700 tokens, stepwise generation for each; chunks and company vary with the length."""
    with subject(case, tmp_path) as it:
        engine = it.engine()
        for length in (*range(1, 130, 8), *range(130, 700, 63), 700):
            prompt = random_prompt(length, it.public_ids, length)
            expected = transformers_tokens(it, prompt)
            best = transformers_logits(it, prompt, expected).topk(2).values
            separated = int(((best[:, 0] - best[:, 1]) > MARGIN).cumprod(0).sum())
            company = [prompt, *it.prompts[: length % 4]]
            generation = generate(engine, company, TOKENS, CHUNKS[length % 4], seed=length)[0]
            assert generation.tokens[:separated] == expected[:separated], f"prompt of {length} tokens"
