"""Draft head rows (artifact spec, section 13)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ninfer.artifact.draft_head import PublicTokens, draft_token_ids, public_tokens, read_ranking
from ninfer.artifact.frontend import small_frontend, smallest_public_tokens
from ninfer.errors import ArtifactError

COUNTS = np.array([5, 9, 9, 0, 3, 0, 7, 1], np.int64)
TOKENS = PublicTokens(8, (3, 5))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (5, [1, 2, 6, 3, 5]),  # the example of the spec
        (2, [3, 5]),
        (1, [3]),
        (8, [1, 2, 6, 0, 4, 7, 3, 5]),
    ],
)
def test_rows(rows: int, expected: list[int]) -> None:
    ids = draft_token_ids(COUNTS, TOKENS, rows, "m")
    assert ids.dtype == np.int32
    assert ids.tolist() == expected


def test_special_tokens_take_their_rank() -> None:
    counts = np.array([1, 5, 3, 4], np.int64)
    assert draft_token_ids(counts, PublicTokens(4, (2,)), 3, "m").tolist() == [1, 3, 2]
    assert draft_token_ids(counts, PublicTokens(4, (1, 2, 3)), 2, "m").tolist() == [1, 3]


def test_zero_counts_take_ids_in_order() -> None:
    assert draft_token_ids(np.zeros(8, np.int64), TOKENS, 4, "m").tolist() == [0, 1, 3, 5]


@pytest.mark.parametrize("rows", [0, -1, 9])
def test_impossible_rows(rows: int) -> None:
    with pytest.raises(ArtifactError, match="BAD_SOURCE"):
        draft_token_ids(COUNTS, TOKENS, rows, "m")


def test_public_tokens_of_the_small_frontend() -> None:
    files = small_frontend()
    tokens = public_tokens(files["tokenizer.json"], files["tokenizer_config.json"], "m")
    assert tokens.count == smallest_public_tokens()
    # 33 control tokens, of which think, tool and fim/repo/file tokens are not special.
    assert len(tokens.special) == 33 - 12


def tokenizer(vocab: dict[str, int], *added: tuple[int, str, bool]) -> bytes:
    entries = [{"id": i, "content": content, "special": special} for i, content, special in added]
    return json.dumps({"model": {"vocab": vocab}, "added_tokens": entries}).encode()


def decoder(*added: tuple[int, str, bool]) -> bytes:
    entries = {str(i): {"content": content, "special": special} for i, content, special in added}
    return json.dumps({"added_tokens_decoder": entries}).encode()


def test_lists_are_merged() -> None:
    merged = public_tokens(tokenizer({"a": 0}, (1, "x", True)), decoder((1, "x", True), (2, "y", False)), "m")
    assert merged == PublicTokens(3, (1,))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (tokenizer({"a": 0}, (1, "x", True)), decoder((1, "y", True))),
        (tokenizer({"a": 0}, (1, "x", True)), decoder((1, "x", False))),
        (tokenizer({"a": 0, "b": 2}), decoder()),
        (tokenizer({"a": 1}), decoder()),
        (b"{}", decoder()),
        (b"[]", decoder()),
        (b"not json", decoder()),
        (tokenizer({"a": 0}), b'{"added_tokens_decoder": {"x": 1}}'),
    ],
)
def test_contradictions(first: bytes, second: bytes) -> None:
    with pytest.raises(ArtifactError, match="m: BAD_SOURCE"):
        public_tokens(first, second, "m")


def test_ranking_file(tmp_path: Path) -> None:
    path = tmp_path / "counts.i64"
    np.arange(24, dtype="<i8").tofile(path)
    assert read_ranking(path, 8).tolist() == list(range(8))
    for bad in (5, 48):
        with pytest.raises(ArtifactError, match="BAD_SOURCE"):
            read_ranking(path, bad)
    path.write_bytes(b"")
    with pytest.raises(ArtifactError, match="has 0 bytes"):
        read_ranking(path, 8)
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_ranking(tmp_path / "absent", 8)
