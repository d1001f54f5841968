"""Trains the embedded model in parts that each stop by themselves.

    python -m ninfer.embedded.training.train --frontend DIR --state FILE --stop-after-s 540 --total-minutes 17 --out DIR

The first call starts from the seed, a later one continues from the state file. Schedule and row lengths follow the
share of the total minutes that has been trained (`schedule`). At the end of a part the state is saved, the checkpoint
is exported to --out, and the tasks are examined on held-out cases.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ninfer.embedded.generate.documents import ANSWER, TEXT
from ninfer.embedded.training.delta_rule import DELTA_RULES
from ninfer.embedded.training.dimensions import Dimensions
from ninfer.embedded.training.examine import Examiner
from ninfer.embedded.training.export import save_checkpoint
from ninfer.embedded.training.loss import Targets, token_losses, weighted_mean
from ninfer.embedded.training.network import Network, Routes
from ninfer.embedded.training.optimiser import Optimiser
from ninfer.embedded.training.packed_attention import ATTENTIONS, Documents
from ninfer.embedded.training.packing import BLOCK_TOKENS, Block, Stream
from ninfer.embedded.training.schedule import DRAFT_WEIGHT, LENGTHS, rate, rounding, row_length

TOY = Dimensions(
    hidden=128, layers=4, intermediate=128, heads=2, head_dim=64, key_heads=1, value_heads=2, gdn_dim=64
)  # fmt: skip
TOY_LENGTHS = ((0.0, 512), (0.5, 1024))
LOG_EVERY = 50


@dataclass(slots=True)
class Progress:
    """What a state file says beside weights: seconds trained and steps taken, and the log so far."""

    seconds: float = 0.0
    steps: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """One network on one device, fed block by block."""

    def __init__(self, network: Network, routes: Routes, tokens: int, device: torch.device, *, compiled: bool) -> None:
        self.network = network
        self.optimiser = Optimiser(network)
        self.tokens = tokens
        self._routes = routes
        self._device = device
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._token_losses: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = token_losses
        if compiled:
            self._compile()

    def _compile(self) -> None:
        torch._dynamo.config.recompile_limit = 128
        # Per-token parts only: the sequence operations are kernels of their own.
        for layer in [*self.network.model.layers, *self.network.mtp.layers]:
            layer.before = torch.compile(layer.before, dynamic=False)
            layer.after = torch.compile(layer.after, dynamic=False)
        self.network.mtp.join = torch.compile(self.network.mtp.join, dynamic=False)  # type: ignore[method-assign]
        self._token_losses = torch.compile(token_losses, dynamic=False)

    def _losses(self, blocks: list[Block]) -> tuple[Tensor, Tensor]:
        """The loss to descend, and [answer loss, text loss, draft loss, share of accepted drafts] without gradient."""
        cuda = self._device.type == "cuda"
        ids, weights, positions = (
            torch.from_numpy(_joined([getattr(block, name) for block in blocks]))
            for name in ("ids", "weights", "positions")
        )
        documents = Documents.at(sum(len(block.ids) for block in blocks), positions, self._device)
        if cuda:
            ids, weights = (x.pin_memory().to(self._device, non_blocking=True) for x in (ids, weights))
        positions = documents.positions
        h, m = self.network(ids, documents, self._routes, self._dtype)
        table = self.network.head().to(self._dtype)
        share = weights.float() / 100
        near, far = (Targets.ahead(ids, positions, share, by) for by in (1, 2))
        losses, likely = self._token_losses(h, table, near.ids)
        drafts_losses, drafts = self._token_losses(m, table, far.ids)
        draft_loss = weighted_mean(drafts_losses, far.weights)
        loss = weighted_mean(losses, near.weights) + DRAFT_WEIGHT * draft_loss
        with torch.no_grad():
            answers, texts = (near.weights == kind / 100 for kind in (ANSWER, TEXT))
            accepted = (drafts[:-1] == likely[1:]) & (far.weights[:-1] == ANSWER / 100)
            figures = [
                weighted_mean(losses, answers.float()),
                weighted_mean(losses, texts.float()),
                draft_loss,
                accepted.sum() / (far.weights == ANSWER / 100).sum().clamp_min(1),
            ]
            return loss, torch.stack(figures)

    def warm_up(self, blocks: list[Block]) -> None:
        """Compile everything without changing a weight."""
        self._losses(blocks)[0].backward()  # type: ignore[no-untyped-call]
        self.network.zero_grad(set_to_none=True)

    def step(self, blocks: list[Block], scale: float) -> Tensor:
        """One update at `scale` times the learning rates; returns the four figures, still on the device."""
        loss, figures = self._losses(blocks)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step(scale)
        return figures

    def predict(self, ids: Tensor, positions: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """For the examiner. With gradients on, because the graphs were compiled so."""
        documents = Documents.at(rows, positions.cpu(), self._device)
        h, m = self.network(ids, documents, self._routes, self._dtype)
        table = self.network.head().to(self._dtype)
        losses, likely = self._token_losses(h, table, torch.roll(ids, -1))
        _, drafts = self._token_losses(m, table, torch.roll(ids, -2))
        return losses.detach(), likely, drafts


def _joined(parts: list[NDArray[Any]]) -> NDArray[np.int64]:
    return np.concatenate(parts).astype(np.int64).reshape(-1)


def save(path: Path, trainer: Trainer, progress: Progress) -> None:
    state = {
        "network": trainer.network.state_dict(),
        "optimiser": trainer.optimiser.state(),
        "seconds": progress.seconds,
        "steps": progress.steps,
        "records": progress.records,
    }
    temporary = path.with_suffix(".part")
    torch.save(state, temporary)
    temporary.replace(path)


def restore(state: dict[str, Any], trainer: Trainer) -> Progress:
    trainer.network.load_state_dict(state["network"])
    trainer.optimiser.load(state["optimiser"])
    return Progress(state["seconds"], state["steps"], state["records"])


def _step_blocks(stream: Stream, rows: int) -> list[Block]:
    blocks: list[Block] = []
    while sum(len(block.ids) for block in blocks) < rows:
        blocks.append(stream.take())
    return blocks


def train(trainer: Trainer, streams: dict[int, Stream], progress: Progress, deadline: float, total_s: float) -> None:
    """Take steps until the monotonic clock shows `deadline` or the whole budget is used up."""
    lengths = tuple((begin, length) for begin, length in LENGTHS if length in streams) or TOY_LENGTHS
    began = time.monotonic()
    length = row_length(progress.seconds / total_s, lengths)
    trainer.warm_up(_step_blocks(streams[length], trainer.tokens // length))
    print(f"warm after {time.monotonic() - began:.0f} s", flush=True)
    started, before = time.monotonic(), progress.seconds
    last_step, last_time = progress.steps, started
    while progress.seconds < total_s and time.monotonic() < deadline:
        done = progress.seconds / total_s
        length = row_length(done, lengths)
        waited = time.monotonic()
        blocks = _step_blocks(streams[length], trainer.tokens // length)
        waited = time.monotonic() - waited
        if progress.steps % 20 == 0:
            trainer.network.round_weights(rounding(done))
        measured = trainer.step(blocks, rate(done))
        progress.steps += 1
        if progress.steps % LOG_EVERY == 0:
            values = [round(x, 4) for x in measured.tolist()]
            if not all(x == x for x in values):
                raise FloatingPointError(f"loss at step {progress.steps} is not finite: {values}")
            now = time.monotonic()
            speed = (progress.steps - last_step) * trainer.tokens / (now - last_time)
            last_step, last_time = progress.steps, now
            record = dict(zip(("answer", "text", "draft", "accepted"), values, strict=True))
            record |= {"step": progress.steps, "done": round(done, 4), "length": length, "tokens_per_s": round(speed)}
            record |= {"ready": streams[length].ready, "waited_ms": round(1000 * waited)}
            progress.records.append(record)
            if progress.steps % (4 * LOG_EVERY) == 0 or progress.steps <= 4 * LOG_EVERY:
                print(json.dumps(record), flush=True)
        progress.seconds = before + time.monotonic() - started


def main() -> None:
    born = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frontend", type=Path, required=True, help="directory that `vocabulary` has written")
    parser.add_argument("--state", type=Path, required=True, help="file to continue from, if it exists, and to save to")
    parser.add_argument("--out", type=Path, required=True, help="directory for the checkpoint and the reports")
    parser.add_argument("--stop-after-s", type=float, required=True, help="end training when this process is so old")
    parser.add_argument("--total-minutes", type=float, required=True, help="training time of all parts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=131072, help="tokens of a step")
    parser.add_argument("--workers", type=int, default=13)
    parser.add_argument("--cases", type=int, default=64, help="held-out cases of each task")
    parser.add_argument("--delta-rule", choices=sorted(DELTA_RULES), default="fla")
    parser.add_argument("--attention", choices=sorted(ATTENTIONS), default="varlen")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--toy", action="store_true", help="a tiny network on short rows, to try the whole path")
    args = parser.parse_args()

    lengths = TOY_LENGTHS if args.toy else LENGTHS
    saved = torch.load(args.state, map_location="cpu", weights_only=True) if args.state.exists() else None
    part = f"{args.seed} {saved['steps'] if saved else 0}"
    block = min(BLOCK_TOKENS, args.tokens)
    streams = {
        length: Stream(args.frontend, f"train {part} {length}", length, max(1, block // length), args.workers)
        for _, length in lengths
    }
    device = torch.device(args.device)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    network = Network(TOY if args.toy else Dimensions()).to(device)
    routes = Routes(DELTA_RULES[args.delta_rule], ATTENTIONS[args.attention])
    trainer = Trainer(network, routes, args.tokens, device, compiled=not args.eager)
    progress = restore(saved, trainer) if saved else Progress()
    network.round_weights(rounding(progress.seconds / (60 * args.total_minutes)))
    try:
        train(trainer, streams, progress, born + args.stop_after_s, 60 * args.total_minutes)
    finally:
        for stream in streams.values():
            stream.close()
    args.state.parent.mkdir(parents=True, exist_ok=True)
    save(args.state, trainer, progress)
    save_checkpoint(network, args.out)
    (args.out / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in progress.records))
    print(f"{progress.steps} steps, {progress.seconds:.0f} s trained", flush=True)
    report(trainer, args.frontend, args.seed, args.cases, lengths[-1][1], args.out)


def report(trainer: Trainer, frontend: Path, seed: int, cases: int, length: int, out: Path) -> None:
    """Examine the weights as they are and as they will be stored; print both, write evaluation.json."""
    device = next(trainer.network.parameters()).device
    examiner = Examiner(frontend, seed, cases, trainer.tokens, length, device)
    results = {}
    for name, amount in (("trained", 0.0), ("stored", 1.0)):
        trainer.network.round_weights(amount)
        results[name] = examiner.examine(trainer.predict)
        print(f"weights as {name}:\n{examiner.table(results[name])}", flush=True)
    (out / "evaluation.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
