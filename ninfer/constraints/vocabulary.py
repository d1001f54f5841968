"""The vocabulary as the grammar library and the masks see it."""

from __future__ import annotations

from collections.abc import Iterable

from llguidance import LLTokenizer, TokenizerWrapper

from ninfer.text.prompt import THINK_CLOSE, TOOL_CALL_CLOSE, TOOL_CALL_OPEN
from ninfer.text.tokenizer import Tokenizer

WORD_BITS = 32


class Vocabulary:
    """Made once per model; takes about two seconds for a quarter of a million tokens, so not on an event loop.

    words           32-bit words of a mask, ``ceil(id_count / 32)``
    close_id        the token that closes thinking
    after_close     what stands between it and the answer
    call_id         the token that opens a tool call
    thinking_halts  ids behind which thinking has another mask than `thinking_mask(0)`, in the form of a mask
    *_bits          sets of ids, as the bits of a number
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.words = -(-tokenizer.id_count // WORD_BITS)
        self.close_id = tokenizer.control_id(THINK_CLOSE)
        self.after_close = tuple(tokenizer.encode("\n\n"))
        self.stop_ids = tokenizer.stop_ids
        tokens = _Tokens(tokenizer)
        self._ordinary = tokens.ordinary
        self.library = LLTokenizer(TokenizerWrapper(tokens), eos_token=sorted(tokenizer.stop_ids))
        self.ordinary_bits = bits_of(tokens.ordinary)
        self.markup_bits = bits_of(map(tokenizer.control_id, (TOOL_CALL_OPEN, TOOL_CALL_CLOSE)))
        self.call_id = tokenizer.control_id(TOOL_CALL_OPEN)
        self.stop_bits = bits_of(tokenizer.stop_ids)
        self._thinking = _thinking_masks(tokens, self.words, self.close_id)
        self.thinking_halts = _thinking_halts(tokens, self.words, self.close_id)

    def is_ordinary(self, token_id: int) -> bool:
        """Whether an id is that of a token of text, not of a control token and not of none."""
        return token_id in self._ordinary

    def thinking_mask(self, matched: int) -> bytes:
        """What may follow in open thinking when its text ends with the first `matched` bytes of the closing marker.

        All of text, and the closing token; not what would spell the marker out, because the parser would take it for
        the close, and no stop token.
        """
        return self._thinking[matched]

    def only(self, token_id: int) -> bytes:
        """A mask that leaves one id."""
        return (1 << token_id).to_bytes(self.words * 4, "little")


def bits_of(token_ids: Iterable[int]) -> int:
    """A set of ids as the bits of a number."""
    bits = bytearray()
    for token_id in token_ids:
        if token_id // 8 >= len(bits):
            bits.extend(bytes(token_id // 8 + 1 - len(bits)))
        bits[token_id // 8] |= 1 << token_id % 8
    return int.from_bytes(bits, "little")


def marker_progress(matched: int, token: bytes) -> int:
    """How many bytes of the closing marker a text ends with, once the token stands behind `matched` of them."""
    text = _CLOSE[:matched] + token
    at = text.rfind(_CLOSE[:1])
    return len(text) - at if at >= 0 and _CLOSE.startswith(text[at:]) else 0


# `<` stands only at its start, so at most one beginning of it can end a text.
_CLOSE = THINK_CLOSE.encode()


class _Tokens:
    """The tokens in the shape that the library asks for; what control tokens spell is none of its business."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.stop_ids)
        self.bos_token_id = None
        self.special_token_ids = [n for n in range(tokenizer.id_count) if tokenizer.is_control(n)]
        self.tokens = [_bytes_or_none(tokenizer, n) for n in range(tokenizer.id_count)]
        special = frozenset(self.special_token_ids)
        self.ordinary = frozenset(n for n, token in enumerate(self.tokens) if token and n not in special)

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode())


def _bytes_or_none(tokenizer: Tokenizer, token_id: int) -> bytes:
    try:
        return tokenizer.token_bytes(token_id)
    except ValueError:
        return b""


def _thinking_halts(tokens: _Tokens, words: int, close_id: int) -> bytes:
    begin = [n for n in tokens.ordinary if _CLOSE[:1] in tokens.tokens[n] and marker_progress(0, tokens.tokens[n])]
    return bits_of((close_id, *begin)).to_bytes(words * 4, "little")


def _thinking_masks(tokens: _Tokens, words: int, close_id: int) -> list[bytes]:
    free = bits_of(tokens.ordinary) | 1 << close_id
    # Whatever completes the marker has its last character: few tokens of a large vocabulary have it.
    ending = [n for n in tokens.ordinary if _CLOSE[-1:] in tokens.tokens[n]]
    masks = []
    for matched in range(len(_CLOSE)):
        rest = _CLOSE[matched:]
        # A whole marker inside one token spells it out wherever the text stands.
        spelling = [n for n in ending if tokens.tokens[n].startswith(rest) or _CLOSE in tokens.tokens[n]]
        masks.append((free & ~bits_of(spelling)).to_bytes(words * 4, "little"))
    return masks
