"""Byte-level BPE of an artifact's resources, with control tokens kept apart from text (model spec 13).

The library cuts the spelling of an added token out of a text wherever it occurs. A server must not: a client could then
end its own turn. So the library only ever sees a vocabulary *without* added tokens, and control ids come from two
places alone: the control segments of a rendered prompt, and an explicit call of :meth:`Tokenizer.encode_with_control`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

import tokenizers

from ninfer.errors import StartupError
from ninfer.text.prompt import (
    END_OF_TEXT,
    IM_END,
    THINK_CLOSE,
    THINK_OPEN,
    TOOL_CALL_CLOSE,
    TOOL_CALL_OPEN,
    RenderedPrompt,
)

# Markup that the output parser reads: it is text to us even where a file marks it as special.
_PARSED_MARKUP = frozenset((THINK_OPEN, THINK_CLOSE, TOOL_CALL_OPEN, TOOL_CALL_CLOSE))


def _byte_alphabet() -> dict[str, int]:
    """The byte of each letter of a byte-level vocabulary: printable Latin-1 for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(rest)}


_BYTE_OF = _byte_alphabet()
_LATIN_1_OF = str.maketrans({letter: chr(byte) for letter, byte in _BYTE_OF.items()})


def _object(resource: bytes, name: str) -> dict[str, object]:
    try:
        value = json.loads(resource)
    except ValueError as error:
        raise StartupError(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise StartupError(f"{name} holds no JSON object")
    return value


class Tokenizer:
    """Text to token ids and back, for any vocabulary size.

    tokenizer_json      the file of the Hugging Face library; model BPE, byte-level
    tokenizer_config    its companion, or None; tokens of `added_tokens_decoder` are merged in
    generation_config   or None; its `eos_token_id` joins the stop ids
    raises StartupError for resources that are not those of a byte-level BPE tokenizer

    Encoding releases the interpreter lock, so that a long prompt on a worker thread leaves the event loop alone.
    """

    def __init__(self, tokenizer_json: bytes, tokenizer_config: bytes | None, generation_config: bytes | None) -> None:
        definition = _object(tokenizer_json, "tokenizer.json")
        config = {} if tokenizer_config is None else _object(tokenizer_config, "tokenizer_config.json")
        generation = {} if generation_config is None else _object(generation_config, "generation_config.json")

        added = _added_tokens(definition, config)
        self._control_ids = {spelling: token_id for token_id, (spelling, _) in added.items()}
        self._hidden = frozenset(
            token_id for token_id, (spelling, special) in added.items() if special and spelling not in _PARSED_MARKUP
        )
        self._control_pattern = re.compile(
            "|".join(re.escape(spelling) for spelling in sorted(self._control_ids, key=len, reverse=True)) or r"(?!)"
        )
        vocabulary = _without_added_tokens(definition, self._control_ids)
        self._spelling: dict[int, str] = {token_id: spelling for spelling, token_id in vocabulary.items()}
        self._control: dict[int, bytes] = {token_id: spelling.encode() for token_id, (spelling, _) in added.items()}
        if clash := self._control.keys() & self._spelling.keys():
            raise StartupError(f"tokenizer.json: id {min(clash)} is both an added token and an entry of the vocabulary")
        try:
            self._plain = tokenizers.Tokenizer.from_str(json.dumps(definition))
        except Exception as error:  # the library has no narrower type for a definition it cannot use
            raise StartupError(f"tokenizer.json cannot be used: {error}") from None
        if unknown := {letter for spelling in vocabulary for letter in spelling} - _BYTE_OF.keys():
            raise StartupError(f"tokenizer.json is not byte-level: {min(unknown)!r} stands for no byte")
        self._id_count = max([*self._spelling, *self._control], default=-1) + 1
        self._stop_ids = _stop_ids(generation, self._control_ids, self._id_count)

    @classmethod
    def from_resources(
        cls, tokenizer_json: bytes, tokenizer_config: bytes | None, generation_config: bytes | None
    ) -> Tokenizer:
        """The tokenizer of an artifact, from the bytes of its three resources."""
        return cls(tokenizer_json, tokenizer_config, generation_config)

    @property
    def id_count(self) -> int:
        """Addressable ids are `[0, id_count)`; head rows behind them are reserved and never emitted."""
        return self._id_count

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Every control token of the files, spelling to id."""
        return MappingProxyType(self._control_ids)

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a turn (model spec 16.3): the family's by spelling, and those of the generation config."""
        return self._stop_ids

    def control_id(self, spelling: str) -> int:
        """Id of one control token; StartupError when the vocabulary lacks it."""
        try:
            return self._control_ids[spelling]
        except KeyError:
            raise StartupError(f"the tokenizer has no control token {spelling}") from None

    def is_control(self, token_id: int) -> bool:
        return token_id in self._control

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. Control spellings in it are text like any other; nothing is put in front or behind."""
        return self._encode_all([text])[0]

    def encode_with_control(self, text: str) -> list[int]:
        """Ids of trusted text, in which each control spelling stands for its control token."""
        ids: list[int] = []
        position = 0
        for found in self._control_pattern.finditer(text):
            ids += self.encode(text[position : found.start()])
            ids.append(self._control_ids[found.group()])
            position = found.end()
        return ids + self.encode(text[position:])

    def encode_prompt(self, prompt: RenderedPrompt) -> list[int]:
        """Ids of a rendered prompt: only its control segments become control ids.

        Equal to what the library gives for the whole text as long as no client text holds a control spelling, because
        the library, too, cuts added tokens out before it normalises and splits. StartupError for a control segment that
        the vocabulary lacks.
        """
        return self.encode_segments(prompt)[0]

    def encode_segments(self, prompt: RenderedPrompt) -> tuple[list[int], list[int]]:
        """The same, and for each segment of the prompt the number of ids in front of it."""
        texts = iter(self._encode_all([segment.text for segment in prompt.segments if not segment.control]))
        ids: list[int] = []
        starts: list[int] = []
        for segment in prompt.segments:
            starts.append(len(ids))
            if segment.control:
                ids.append(self.control_id(segment.text))
            else:
                ids += next(texts)
        return ids, starts

    def _encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        # Only the batch call of the library releases the interpreter lock.
        encodings = self._plain.encode_batch_fast(list(texts), add_special_tokens=False)
        # One by one, from the end: thousands of them freed together keep the interpreter for milliseconds.
        ids: list[list[int]] = []
        while encodings:
            ids.append(encodings.pop().ids)
        ids.reverse()
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that a token stands for, the spelling for a control token; ValueError for an id that is no token."""
        spelling = self._spelling.get(token_id)
        if spelling is not None:
            return spelling.translate(_LATIN_1_OF).encode("latin-1")
        try:
            return self._control[token_id]
        except KeyError:
            raise ValueError(f"{token_id} is not the id of a token") from None

    def text_bytes(self, token_id: int) -> bytes:
        """Bytes that a *generated* token adds to the output text.

        Nothing for stop ids and for control tokens that the files mark as special; think and tool markup is text,
        whatever its mark, because the output parser reads it.
        """
        if token_id in self._hidden or token_id in self._stop_ids:
            return b""
        return self.token_bytes(token_id)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of ids, control tokens spelled out; each maximal ill-formed byte run becomes one U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", errors="replace")


def _added_tokens(definition: Mapping[str, object], config: Mapping[str, object]) -> dict[int, tuple[str, bool]]:
    """Id to (spelling, special) of both files merged; 3.6 files list some tokens only in the second (13.2)."""
    listed = [(entry.get("id"), entry) for entry in _entries(definition.get("added_tokens") or [])]
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise StartupError("tokenizer_config.json: added_tokens_decoder is not an object")
    listed += [
        (int(key) if key.isdecimal() else key, entry)
        for key, entry in zip(decoder, _entries(decoder.values()), strict=True)
    ]
    added: dict[int, tuple[str, bool]] = {}
    for token_id, entry in listed:
        spelling = entry.get("content")
        if not isinstance(token_id, int) or token_id < 0 or not isinstance(spelling, str) or not spelling:
            raise StartupError(f"tokenizer files: added token {entry!r} has no proper id and content")
        if any(entry.get(flag) for flag in ("single_word", "lstrip", "rstrip")):
            raise StartupError(
                f"tokenizer files: added token {spelling} has a surroundings flag, which is not supported"
            )
        known = added.setdefault(token_id, (spelling, bool(entry.get("special"))))
        if known[0] != spelling:
            raise StartupError(f"tokenizer files: id {token_id} is both {known[0]} and {spelling}")
    if len({spelling for spelling, _ in added.values()}) != len(added):
        raise StartupError("tokenizer files: two ids have the same added token")
    return added


def _entries(values: object) -> list[dict[str, object]]:
    entries = list(cast("Iterable[object]", values))
    if not all(isinstance(entry, dict) for entry in entries):
        raise StartupError("tokenizer files: an added token is not an object")
    return cast("list[dict[str, object]]", entries)


def _without_added_tokens(definition: dict[str, object], control: Mapping[str, int]) -> dict[str, int]:
    """Take every added token out of the definition; returns the vocabulary that is left."""
    model = definition.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise StartupError("tokenizer.json: the model is not BPE with a vocabulary")
    definition["added_tokens"] = []
    # What a post-processor would put around a text refers to added tokens; we never ask for it.
    definition["post_processor"] = definition["truncation"] = definition["padding"] = None
    # Training puts special tokens into the vocabulary as well. No merge leads to them, but a whole-word look-up would.
    vocabulary: dict[str, int] = {spelling: n for spelling, n in model["vocab"].items() if spelling not in control}
    model["vocab"] = vocabulary
    return vocabulary


def _stop_ids(generation: Mapping[str, object], control: Mapping[str, int], id_count: int) -> frozenset[int]:
    stated = generation.get("eos_token_id")
    ids = stated if isinstance(stated, list) else [] if stated is None else [stated]
    if not all(isinstance(token_id, int) and 0 <= token_id < id_count for token_id in ids):
        raise StartupError(f"generation_config.json: eos_token_id {stated!r} names no token of the vocabulary")
    return frozenset(ids) | {control[spelling] for spelling in (IM_END, END_OF_TEXT) if spelling in control}
