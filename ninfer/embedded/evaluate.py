"""What the embedded model can do, on held-out cases of any seed.

    python -m ninfer.embedded.evaluate [--seed N] [--cases N] [--only TEXT] [--model FILE.ninfer] [--checkpoint DIR]
        [--json]

Tasks are answered greedily by the engine from the artifact's own tokenizer and template. Acceptance of the first draft
and perplexity come from one pass over held-out text; with --checkpoint (the bf16 weights) the cost of storing is shown.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

import torch
from safetensors.torch import load_file

from ninfer.artifact.binder import BoundArtifact, bind
from ninfer.artifact.container import Artifact
from ninfer.config import EngineSettings
from ninfer.embedded import ARTIFACT
from ninfer.embedded.answers import answer
from ninfer.embedded.generate.documents import Renderer
from ninfer.embedded.generate.prose import story
from ninfer.embedded.generate.tasks import TASKS, Task, held_out_cases
from ninfer.embedded.stored import load_network
from ninfer.embedded.training.delta_rule import CHUNK, chunked
from ninfer.embedded.training.loss import token_losses
from ninfer.embedded.training.network import Network, Routes
from ninfer.embedded.training.packed_attention import Documents, masked
from ninfer.engine.engine import Engine
from ninfer.served import settle_memory
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer

CONTEXT_TOKENS = 16384 + 512
ACCEPTANCE = {"structured": 0.75, "prose": 0.45}
PERPLEXITY_RISE, DECODE_RATE = 0.03, 60.0
SPEED_TOKENS, SPEED_RUNS = 129, 5
DECODE = "decode, tokens per second"
STRUCTURED, PROSE = "acceptance of the first draft, structured", "acceptance of the first draft, prose"
RISE = "rise of perplexity by quantisation"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: measured value, bound, and whether smaller is better."""

    name: str
    value: float
    bound: float
    at_most: bool = False

    @property
    def passed(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound


def run_task(engine: Engine, renderer: Renderer, tokenizer: Tokenizer, task: Task, seed: int, cases: int) -> Row:
    """Share of cases whose greedy answer is the expected one, token for token."""
    right = 0
    for case in held_out_cases(task, seed, cases):
        prompt = tokenizer.encode_prompt(renderer.prompt(case))
        whole = renderer.conversation(case).ids.tolist()
        begin, end = renderer.answers(whole)[-1]
        expected = tuple(whole[begin : end - 1])
        right += answer(engine, prompt, tokenizer.stop_ids, len(expected) + 8).ids == expected
    return Row(task.name, right / cases, task.least)


def decode_rate(engine: Engine, tokenizer: Tokenizer, renderer: Renderer, seed: int) -> Row:
    """Tokens per second of one stream after about 1,000 tokens: the median of several runs behind an unmeasured one."""
    case = held_out_cases(TASKS[0], seed, 1)[0]
    prompt = tokenizer.encode_prompt(renderer.prompt(case))
    runs = [answer(engine, prompt, frozenset(), SPEED_TOKENS) for _ in range(1 + SPEED_RUNS)]
    # The first token comes out of the prompt's last chunk.
    rate = (SPEED_TOKENS - 1) / median(run.decode_s for run in runs[1:])
    return Row(DECODE, rate, DECODE_RATE)


def text_figures(network: Network, documents: list[list[int]]) -> tuple[float, float]:
    """Perplexity of `documents`, and the share of first drafts that the decoder would have accepted."""
    total = count = accepted = 0.0
    routes = Routes(chunked, masked)
    for ids in documents:
        padding = -len(ids) % CHUNK
        padded = torch.tensor(ids + [0] * padding)
        packed = Documents.at(1, torch.arange(len(padded)))
        with torch.inference_mode():
            h, m = network(padded, packed, routes, torch.float32)
            table = network.head()
            losses, likely = token_losses(h, table, padded.roll(-1))
            drafts = (m @ table.T).argmax(-1)
        last = len(ids) - 1
        total += float(losses[:last].double().sum())
        accepted += int((drafts[: last - 1] == likely[1:last]).sum())
        count += last
    return math.exp(total / count), accepted / count


def answer_acceptance(network: Network, renderer: Renderer, seed: int, cases: int) -> float:
    """Share of accepted first drafts within the answers of JSON and tool cases."""
    accepted = count = 0
    for task in (task for task in TASKS if task.name.startswith(("JSON", "tool"))):
        for case in held_out_cases(task, seed, cases):
            ids = renderer.conversation(case).ids.tolist()
            begin, end = renderer.answers(ids)[-1]
            padded = torch.tensor(ids + [0] * (-len(ids) % CHUNK))
            with torch.inference_mode():
                packed = Documents.at(1, torch.arange(len(padded)))
                h, m = network(padded, packed, Routes(chunked, masked), torch.float32)
                table = network.head()
                likely, drafts = ((x @ table.T).argmax(-1) for x in (h, m))
            accepted += int((drafts[begin - 1 : end - 2] == likely[begin : end - 1]).sum())
            count += end - 1 - begin
    return accepted / count


def checkpoint_network(bound: BoundArtifact, directory: Path) -> Network:
    """The network of `bound` with the weights of a checkpoint directory."""
    network = load_network(bound)
    tensors = {k: v.float() for file in sorted(directory.glob("*.safetensors")) for k, v in load_file(file).items()}
    network.load_state_dict(tensors)
    return network


def evaluate(model: Path, seed: int, cases: int, checkpoint: Path | None, only: str = "") -> list[Row]:
    """The rows of the table whose names contain `only`, in its order; the last one needs the checkpoint.

    Raises ArtifactError or StartupError for a file that is no artifact with an MTP layer.
    """
    with Artifact.open(model) as artifact:
        bound = bind(artifact, ("text", "mtp"))
        files = {
            role: bound.resource("text", role)
            for role in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
        }
        tokenizer = Tokenizer(
            *(files[f"{name}.json"] for name in ("tokenizer", "tokenizer_config", "generation_config"))
        )
        template = ChatTemplate(files["chat_template.jinja"].decode(), tuple(tokenizer.control_ids))
        renderer = Renderer(template, tokenizer)
        settings = EngineSettings(max_context_tokens=CONTEXT_TOKENS, kv_capacity_tokens=CONTEXT_TOKENS)
        engine = Engine.load(bind(artifact), settings, tokenizer.id_count)
        settle_memory()
        rows = []
        for task in (task for task in TASKS if only in task.name):
            rows.append(run_task(engine, renderer, tokenizer, task, seed, cases))
            print(f"{task.name}: {rows[-1].value:.3f}", file=sys.stderr, flush=True)
        if only in DECODE:
            rows.append(decode_rate(engine, tokenizer, renderer, seed))
        rows += text_rows(bound, renderer, seed, cases, checkpoint, only)
    return rows


def text_rows(
    bound: BoundArtifact, renderer: Renderer, seed: int, cases: int, checkpoint: Path | None, only: str
) -> list[Row]:
    """The rows that come from one pass over held-out text."""
    rows = []
    network = load_network(bound)
    if only in STRUCTURED:
        rows.append(Row(STRUCTURED, answer_acceptance(network, renderer, seed, cases), ACCEPTANCE["structured"]))
    if only in PROSE or only in RISE:
        rng = Random(f"held-out text {seed}")
        stories = [renderer.story(story(rng, 6)).ids.tolist() for _ in range(max(4, cases))]
        perplexity, prose = text_figures(network, stories)
        if only in PROSE:
            rows.append(Row(PROSE, prose, ACCEPTANCE["prose"]))
        if only in RISE and checkpoint is not None:
            exact, _ = text_figures(checkpoint_network(bound, checkpoint), stories)
            rows.append(Row(RISE, perplexity / exact - 1, PERPLEXITY_RISE, True))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ARTIFACT)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=50, help="cases of each task")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose names contain this; `decode` is speed")
    parser.add_argument("--checkpoint", type=Path, help="directory with the bf16 weights")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = evaluate(args.model, args.seed, args.cases, args.checkpoint, args.only)
    if not rows:
        parser.error(f"no row is named like '{args.only}'")
    if args.json:
        lines = {row.name: {"value": row.value, "bound": row.bound, "passed": row.passed} for row in rows}
        report = {"seed": args.seed, "cases": args.cases, "threads": torch.get_num_threads(), "rows": lines}
        print(json.dumps(report, indent=1))
    else:
        for row in rows:
            sign = "<=" if row.at_most else ">="
            print(f"{row.name:44s} {row.value:9.3f} {sign} {row.bound:6.2f}  {'pass' if row.passed else 'FAIL'}")
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
