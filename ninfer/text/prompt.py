"""A rendered prompt: text in which the template's own control tokens are told apart from everything a client wrote.

The spelling ``<|im_end|>`` in a message and the control token of that spelling read the same; only the second may
become a control id. The prompt therefore stays a list of segments until it is token ids.
"""

from __future__ import annotations

from dataclasses import dataclass

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
TOOL_CALL_OPEN = "<tool_call>"
TOOL_CALL_CLOSE = "</tool_call>"

# Token spellings of the family, model spec 13.2, in the order of their ids.
FAMILY_CONTROL_TOKENS = (
    END_OF_TEXT,
    IM_START,
    IM_END,
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    TOOL_CALL_OPEN,
    TOOL_CALL_CLOSE,
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    THINK_OPEN,
    THINK_CLOSE,
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)


@dataclass(frozen=True, slots=True)
class Segment:
    """Plain text, or one control token by its spelling."""

    text: str
    control: bool


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """What a chat template made of a conversation; two text segments never touch, none is empty."""

    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """The prompt as one string, control tokens spelled out: byte for byte what the template writes."""
        return "".join(segment.text for segment in self.segments)

    @property
    def opens_think(self) -> bool:
        """Whether generation begins inside a think block (serving spec 10.2)."""
        for segment in reversed(self.segments):
            if segment.control and segment.text in (THINK_OPEN, THINK_CLOSE, IM_START, IM_END):
                return segment.text == THINK_OPEN
        return False

    def continued(self, text: str) -> RenderedPrompt:
        """The prompt with client text behind it, which generation then continues (assistant prefill, serving 5.2)."""
        if not text:
            return self
        if self.segments and not self.segments[-1].control:
            *before, last = self.segments
            return RenderedPrompt((*before, Segment(last.text + text, control=False)))
        return RenderedPrompt((*self.segments, Segment(text, control=False)))
