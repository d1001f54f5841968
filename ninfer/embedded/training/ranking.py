"""Counts how often each token is to be written, which chooses the rows of the draft head.

python -m ninfer.embedded.training.ranking --frontend DIR --out ranking.bin
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ninfer.embedded.generate.documents import PROMPT
from ninfer.embedded.training.packing import Packer


def count_written(packer: Packer, rows: int, vocabulary: int) -> NDArray[np.int64]:
    """Occurrences [vocabulary] of each id in answers and plain text of `rows` rows; prompts do not count."""
    block = packer.block(rows)
    return np.bincount(block.ids[block.weights > PROMPT], minlength=vocabulary).astype(np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frontend", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, default=8192)
    args = parser.parse_args()
    counts = count_written(Packer(args.frontend, "ranking", 4096), 400, args.vocabulary)
    counts.astype("<i8").tofile(args.out)
    covered = np.sort(counts)[::-1].cumsum() / counts.sum()
    print(f"the 2048 most frequent ids are {covered[2047]:.1%} of what is written, 3072 {covered[3071]:.1%}")


if __name__ == "__main__":
    main()
