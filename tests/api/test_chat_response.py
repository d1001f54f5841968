"""Frames that are put together faster are the same frames."""

from __future__ import annotations

import pytest

from ninfer.api import sse
from ninfer.api.chat_response import ChunkBuilder, Envelope
from ninfer.text.output import ContentDelta, ReasoningDelta


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("text", ["word", ' "quoted" \\ and\nmore', "é\x00\u2028", '"content":""'])
def test_the_frame_of_a_text_is_the_chunk_s(text: str, usage: bool) -> None:
    builder = ChunkBuilder(Envelope("chatcmpl-1", 7, 'a "model": "content":""'), 3, include_usage=usage)
    for delta in (ContentDelta(text), ReasoningDelta(text), ContentDelta("again")):
        chunk = builder.delta(delta, None)
        assert chunk is not None
        assert builder.text_frame(delta) == sse.data_frame(chunk)
