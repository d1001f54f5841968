"""Rows of packed documents, made by worker processes ahead of the training loop."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from ninfer.embedded.generate.documents import TEXT, Document, Renderer
from ninfer.embedded.generate.mixture import Mixture
from ninfer.embedded.generate.prose import story
from ninfer.embedded.training.vocabulary import load_frontend

# Documents from which the one that fits best is taken.
_WAITING = 24
# What one message between processes holds at most, so that rows of one step come from several workers.
BLOCK_TOKENS = 65536
STORY_SHARE = 0.06
CORPUS_SHARE = 0.10
_EFFORTS = ("low", "medium", "xhigh", None)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of equal length.

    ids, positions  [rows, T] uint16; a position of 0 starts a document
    weights         [rows, T] uint8 in hundredths: the loss of predicting that token
    """

    ids: NDArray[np.uint16]
    positions: NDArray[np.uint16]
    weights: NDArray[np.uint8]


class Packer:
    """Draws documents and lays them into rows of `length` tokens."""

    def __init__(self, frontend: Path, seed: str, length: int) -> None:
        tokenizer, template = load_frontend(frontend)
        self._rng = Random(seed)
        self._length = length
        self._renderer = Renderer(template, tokenizer)
        self._tokenizer = tokenizer
        self._corpus: NDArray[np.uint16] = np.load(frontend / "corpus.npy", mmap_mode="r")
        self._mixture = Mixture(self._rng, length - 8, self._real_lines)
        self._waiting: list[Document] = []
        self._drawn = {"corpus": 0, "story": 0, "all": 1}

    def _real_lines(self, rng: Random, characters: int) -> list[str]:
        """Consecutive lines of real text."""
        count = characters // 4 + 16
        begin = rng.randrange(len(self._corpus) - count)
        text = self._tokenizer.decode(self._corpus[begin : begin + count].tolist())
        text = text.replace("<|endoftext|>", "\n").replace("\ufffd", "")
        return text[:characters].splitlines(keepends=True)

    def _text(self, tokens: int) -> Document:
        begin = self._rng.randrange(len(self._corpus) - tokens)
        ids = np.array(self._corpus[begin : begin + tokens])
        return Document(ids, np.full(tokens, TEXT, np.uint8))

    def _draw(self) -> Document:
        rng = self._rng
        drawn = self._drawn
        if drawn["corpus"] < CORPUS_SHARE * drawn["all"]:
            document = self._text(rng.randrange(256, min(2048, self._length)))
            drawn["corpus"] += len(document.ids)
        elif drawn["story"] < STORY_SHARE * drawn["all"]:
            document = self._renderer.story(story(rng, rng.randint(1, 6)))
            drawn["story"] += len(document.ids)
        else:
            kind, conversation = self._mixture.draw()
            document = self._renderer.conversation(conversation, rng.choice(_EFFORTS))
            self._mixture.count(kind, len(document.ids))
        drawn["all"] += len(document.ids)
        return document

    def row(self) -> list[Document]:
        """Documents of exactly one row; real text fills what no waiting document fits into."""
        room = self._length
        row: list[Document] = []
        while room:
            while len(self._waiting) < _WAITING:
                document = self._draw()
                if len(document.ids) <= self._length:
                    self._waiting.append(document)
            # The oldest opens a row, so that none waits for ever; then the longest that fits.
            fitting = [d for d in self._waiting if len(d.ids) <= room]
            chosen = self._waiting[0] if not row else max(fitting, key=lambda d: len(d.ids), default=None)
            if chosen is None:
                row.append(self._text(room))
                break
            self._waiting = [d for d in self._waiting if d is not chosen]
            row.append(chosen)
            room -= len(chosen.ids)
        return row

    def block(self, rows: int) -> Block:
        drawn = [self.row() for _ in range(rows)]
        return Block(
            np.stack([np.concatenate([d.ids for d in row]) for row in drawn]),
            np.stack([np.concatenate([np.arange(len(d.ids), dtype=np.uint16) for d in row]) for row in drawn]),
            np.stack([np.concatenate([d.weights for d in row]) for row in drawn]),
        )


def _work(frontend: Path, seed: str, length: int, rows: int, blocks: multiprocessing.Queue[Block]) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    packer = Packer(frontend, seed, length)
    while True:
        blocks.put(packer.block(rows))


class Stream:
    """Blocks of `rows` rows of `length` tokens from `workers` processes, each with its own seed.

    A full queue stops the workers, so that streams of several lengths can wait beside each other. Start them before the
    GPU is touched: they are forked.
    """

    def __init__(self, frontend: Path, seed: str, length: int, rows: int, workers: int) -> None:
        context = multiprocessing.get_context("fork")
        self._blocks: multiprocessing.Queue[Block] = context.Queue(4 * workers)
        self._processes = [
            context.Process(
                target=_work, args=(frontend, f"{seed} worker {n}", length, rows, self._blocks), daemon=True
            )
            for n in range(workers)
        ]
        for process in self._processes:
            process.start()

    def take(self) -> Block:
        return self._blocks.get()

    @property
    def ready(self) -> int:
        """Blocks that wait to be taken; 0 means that generation is the bottleneck."""
        return self._blocks.qsize()

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        self._blocks.cancel_join_thread()
        self._blocks.close()
