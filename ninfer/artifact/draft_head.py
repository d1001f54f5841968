"""Choosing the rows of the draft head: the proposal over a subset of the vocabulary (artifact spec, section 13)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class PublicTokens:
    """Token ids [0, count) of a tokenizer, and those whose merged `special` flag is true, ascending."""

    count: int
    special: tuple[int, ...]


def public_tokens(tokenizer_json: bytes, tokenizer_config: bytes, path: str) -> PublicTokens:
    """Merge the three lists of token ids of the two tokenizer resources.

    path   named in errors
    Raises ArtifactError BAD_SOURCE when an id has two spellings or two flags, or the ids are not exactly 0 … T−1.
    """
    tokenizer, config = _object(tokenizer_json, path), _object(tokenizer_config, path)
    contents: dict[int, str] = {}
    special: dict[int, bool] = {}

    def add(token: int, content: str, flag: bool | None) -> None:
        if contents.setdefault(token, content) != content:
            raise _bad(path, f"token {token} is both {contents[token]!r} and {content!r}")
        if flag is not None and special.setdefault(token, flag) != flag:
            raise _bad(path, f"token {token} ({content!r}) is special in one list and not in the other")

    try:
        for content, token in tokenizer["model"]["vocab"].items():
            add(int(token), content, None)
        for entry in tokenizer.get("added_tokens", []):
            add(int(entry["id"]), entry["content"], bool(entry["special"]))
        for token, entry in config.get("added_tokens_decoder", {}).items():
            add(int(token), entry["content"], bool(entry["special"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _bad(path, f"tokenizer files are malformed: {error!r}") from None
    if sorted(contents) != list(range(len(contents))):
        missing = next(i for i in range(len(contents) + 1) if i not in contents)
        raise _bad(path, f"token ids are not contiguous: {len(contents)} ids, but {missing} is missing")
    return PublicTokens(len(contents), tuple(sorted(token for token, flag in special.items() if flag)))


def read_ranking(path: Path, vocab_size: int) -> NDArray[np.int64]:
    """Total counts [vocab_size] of a ranking file (little-endian int64 rows of `vocab_size`; only row 0 counts)."""
    try:
        size = path.stat().st_size
        if not size or size % (8 * vocab_size):
            raise _bad(str(path), f"has {size} bytes, expected a positive multiple of {8 * vocab_size}")
        return np.fromfile(path, "<i8", count=vocab_size)
    except OSError as error:
        raise _bad(str(path), f"cannot be read: {error.strerror}") from None


def draft_token_ids(counts: NDArray[np.int64], tokens: PublicTokens, rows: int, path: str) -> NDArray[np.int32]:
    """Token ids [rows] of the draft head, most frequent first, every special token among them if `rows` allows.

    counts   at least [tokens.count]; only public ids are looked at
    Raises ArtifactError BAD_SOURCE unless 0 < rows <= tokens.count.
    """
    if not 0 < rows <= tokens.count:
        raise _bad(path, f"a draft head of {rows} rows needs 0 < rows <= {tokens.count} public tokens")

    def ranked(ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return ids[np.argsort(-counts[ids], kind="stable")]

    special = np.array(tokens.special, np.int64)
    if len(special) >= rows:
        return ranked(special)[:rows].astype(np.int32)
    order = ranked(np.arange(tokens.count))
    picked = order[~np.isin(order, special)][: rows - len(special)]
    return ranked(np.concatenate([picked, special])).astype(np.int32)


def _object(text: bytes, path: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _bad(path, f"tokenizer file is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _bad(path, "tokenizer file does not hold a JSON object")
    return value


def _bad(path: str, detail: str) -> ArtifactError:
    return ArtifactError("BAD_SOURCE", path, detail)
