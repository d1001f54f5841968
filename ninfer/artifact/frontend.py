"""Frontend resources of artifacts without a checkpoint: a small byte-level BPE with the family's control tokens.

The vocabulary is the 256 bytes, a few English merges, optional filler entries that no text produces, and the control
tokens of the model spec, section 13.2, at its end. The chat template is the 3.8 one of this package.
"""

from __future__ import annotations

import importlib.resources
import itertools
import json
import string

from ninfer.text.prompt import FAMILY_CONTROL_TOKENS as CONTROL_TOKENS

# Split pattern of the family (model spec 13.1, a wire constant).
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_NOT_SPECIAL = frozenset(
    (
        *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
        *("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    )
)

# Each merge joins two existing entries; \u0120 is the byte-level letter of the space.
_MERGES = (
    "\u0120 t, h e, i n, r e, \u0120 a, o n, \u0120t he, e r, \u0120 s, \u0120 o, a t, i s, o r, "
    "\u0120 w, \u0120 c, a n, e s, i t, o u, e n, \u0120 b, \u0120 f, in g, \u0120a n, \u0120an d, "
    "\u0120 p, \u0120 m, \u0120o f, e d, \u0120t o, \u0120 in, \u0120 d, a l, l l, a r, \u0120 h, "
    "\u0120 i, \u0120i s, \u0120 y, \u0120y ou, l e, v e, \u0120 e, \u0120 n, r o, a s, i c, i on"
)
MERGES = tuple(tuple(merge.split()) for merge in _MERGES.split(","))


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = itertools.count(0x100)
    return [chr(byte) if byte in plain else chr(next(shifted)) for byte in range(256)]


def smallest_public_tokens() -> int:
    """Token ids of the vocabulary without filler."""
    return 256 + len(MERGES) + len(CONTROL_TOKENS)


def small_frontend(*, public_tokens: int | None = None, vision: bool = False) -> dict[str, bytes]:
    """Resources by role.

    public_tokens   token ids in all; beyond :func:`smallest_public_tokens` filler entries take up the difference
    vision          add the two processor configs
    """
    count = smallest_public_tokens() if public_tokens is None else public_tokens
    if count < smallest_public_tokens():
        raise ValueError(f"a vocabulary needs at least {smallest_public_tokens()} tokens, not {count}")
    base = _base_entries(count - len(CONTROL_TOKENS))
    ids = {spelling: len(base) + i for i, spelling in enumerate(CONTROL_TOKENS)}
    template = importlib.resources.files("ninfer.text").joinpath("templates", "qwen3_8.jinja").read_bytes()
    resources = {
        "tokenizer.json": _json(_tokenizer(base, ids)),
        "tokenizer_config.json": _json(_tokenizer_config(ids)),
        "chat_template.jinja": template,
        "generation_config.json": _json(_generation_config(ids)),
    }
    if vision:
        resources["preprocessor_config.json"] = _json(_processor(65536, 16777216, "Qwen2VLImageProcessorFast"))
        resources["video_preprocessor_config.json"] = _json(_processor(4096, 25165824, None))
    return resources


def _base_entries(count: int) -> list[str]:
    entries = dict.fromkeys([*byte_letters(), *("".join(merge) for merge in MERGES)])
    words = ("\u0120" + "".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4))
    for word in itertools.islice(words, count - len(entries)):
        entries[word] = None
    if len(entries) != count:
        raise ValueError(f"no vocabulary of {count} base entries can be made")
    return list(entries)


def _added(spelling: str) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": spelling, **flags, "special": spelling not in _NOT_SPECIAL}


def _tokenizer(base: list[str], ids: dict[str, int]) -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT_PATTERN}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, **_added(spelling)} for spelling, token in ids.items()],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {entry: token for token, entry in enumerate(base)},
            "merges": [list(merge) for merge in MERGES],
        },
    }


def _tokenizer_config(ids: dict[str, int]) -> dict[str, object]:
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(token): _added(spelling) for spelling, token in ids.items()},
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def _generation_config(ids: dict[str, int]) -> dict[str, object]:
    end = ids["<|endoftext|>"]
    stops = [ids["<|im_end|>"], end]
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 20, "top_p": 0.95}
    return {"bos_token_id": end, "eos_token_id": stops, "pad_token_id": end, **sampling}


def _processor(shortest: int, longest: int, image_processor: str | None) -> dict[str, object]:
    kind = (
        {"video_processor_type": "Qwen3VLVideoProcessor"}
        if image_processor is None
        else {
            "processor_class": "Qwen3VLProcessor",
            "image_processor_type": image_processor,
        }
    )
    return {
        "size": {"shortest_edge": shortest, "longest_edge": longest},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        **kind,
    }


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
