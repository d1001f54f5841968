"""Bytes of consecutive tokens to text that is well-formed at every moment (serving spec 2.6)."""

from __future__ import annotations

import codecs


class Detokeniser:
    """Incremental UTF-8: an incomplete sequence is held until it is complete or can no longer become so.

    For every split the pieces join to what decoding all bytes at once with replacement gives: one U+FFFD for each
    maximal ill-formed run.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: bytes) -> str:
        """The text that the bytes complete, possibly empty."""
        return self._decoder.decode(token)

    def finish(self) -> str:
        """What is still held, as U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)

    @property
    def holds_bytes(self) -> bool:
        """Whether the bytes so far end inside a character."""
        return bool(self._decoder.getstate()[0])
