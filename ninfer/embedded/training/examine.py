"""The tasks' table from the training network, in one forward pass per block of cases.

Greedy decoding writes the expected answer exactly if, behind each prefix of that answer, its next token is the most
likely one. So a case is right when every token of its last answer is; nothing has to be generated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ninfer.embedded.generate.documents import Renderer
from ninfer.embedded.generate.prose import story
from ninfer.embedded.generate.tasks import TASKS, held_out_cases
from ninfer.embedded.training.vocabulary import load_renderer

Ids = NDArray[np.uint16]
# ids, positions [N] and rows to: loss and most likely id of the next token, most likely id of the draft layer, [N].
Predict = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]


def fill_blocks(documents: list[Ids], tokens: int, length: int) -> Iterator[list[tuple[int, int]]]:
    """Lay documents into blocks of `tokens` tokens in rows of `length`; per block (document, place)."""
    placed: list[tuple[int, int]] = []
    at = 0
    for n, document in enumerate(documents):
        assert len(document) <= length, f"a document of {len(document)} tokens in rows of {length}"
        if at % length + len(document) > length:
            at += length - at % length
        if at + len(document) > tokens:
            yield placed
            placed, at = [], 0
        placed.append((n, at))
        at += len(document)
    if placed:
        yield placed


class Examiner:
    """Examines one state of the network after another on the same held-out cases."""

    def __init__(self, frontend: Path, seed: int, cases: int, tokens: int, length: int, device: torch.device) -> None:
        self._renderer: Renderer = load_renderer(frontend)
        self._tokens, self._length, self._device = tokens, length, device
        self._tasks: list[tuple[str, float, list[Ids], list[tuple[int, int]]]] = []
        for task in TASKS:
            documents, spans = [], []
            for case in held_out_cases(task, seed, cases):
                ids = self._renderer.conversation(case).ids
                if len(ids) > length:
                    continue
                documents.append(ids)
                spans.append(self._renderer.answers(ids.tolist())[-1])
            if documents:
                self._tasks.append((task.name, task.least, documents, spans))
        held_out = np.load(frontend / "held-out.npy")
        rng = Random(f"held-out text {seed}")
        piece = min(2048, length)
        starts = [rng.randrange(len(held_out) - piece) for _ in range(max(4, min(48, tokens // piece)))]
        self._texts = {
            "text": [held_out[start : start + piece] for start in starts],
            "story": [self._renderer.story(story(rng, 5)).ids[:length] for _ in range(32)],
        }

    def _passes(self, documents: list[Ids], predict: Predict) -> Iterator[tuple[int, Tensor, Tensor, Tensor, Tensor]]:
        """Per document: its number, ids, loss, most likely id, most likely draft, on the CPU."""
        for placed in fill_blocks(documents, self._tokens, self._length):
            ids = np.zeros(self._tokens, np.int64)
            positions = np.arange(self._tokens) % self._length
            for n, at in placed:
                size = len(documents[n])
                ids[at : at + size] = documents[n]
                positions[at : at + size] = np.arange(size)
                rest = (at // self._length + 1) * self._length - at - size
                positions[at + size : at + size + rest] = np.arange(rest)
            device = self._device
            out = predict(
                torch.from_numpy(ids).to(device),
                torch.from_numpy(positions).to(device),
                self._tokens // self._length,
            )
            loss, likely, drafts = (x.cpu() for x in out)
            for n, at in placed:
                part = slice(at, at + len(documents[n]))
                yield n, torch.from_numpy(ids[part]), loss[part], likely[part], drafts[part]

    def examine(self, predict: Predict) -> dict[str, float]:
        """Share of right cases by task, acceptance of the first draft and perplexity by kind of text."""
        result: dict[str, float] = {}
        accepted = drafted = 0
        for name, _, documents, spans in self._tasks:
            right = 0
            for n, ids, _, likely, drafts in self._passes(documents, predict):
                begin, end = spans[n]
                right += bool((likely[begin - 1 : end - 1] == ids[begin:end]).all())
                accepted += int((drafts[begin - 1 : end - 2] == likely[begin : end - 1]).sum())
                drafted += end - 1 - begin
            result[name] = right / len(documents)
        result["acceptance, structured"] = accepted / max(1, drafted)
        for kind, documents in self._texts.items():
            total = count = hit = 0.0
            for _, _, loss, likely, drafts in self._passes(documents, predict):
                total += float(loss[:-1].double().sum())
                hit += float((drafts[:-2] == likely[1:-1]).sum())
                count += len(loss) - 1
            result[f"perplexity, {kind}"] = math.exp(total / count)
            result[f"acceptance, {kind}"] = hit / count
        return result

    def table(self, result: dict[str, float]) -> str:
        """Lines of the table, failures marked."""
        least = {name: wanted for name, wanted, _, _ in self._tasks}
        lines = []
        for name, value in result.items():
            mark = "" if name not in least else "  ok" if value >= least[name] else f"  BELOW {least[name]:.2f}"
            lines.append(f"{name:40s} {value:8.4f}{mark}")
        return "\n".join(lines)
