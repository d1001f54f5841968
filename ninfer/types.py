"""Value types shared by every layer: what a client asks to be generated, and how a generation ends."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """The resolved sampling law of one request (speculation spec, section 2.1); nothing in it is optional any more.

    temperature         [0, 2]; 0 is the argmax of the penalised logits, lowest id on ties
    top_k               1..20, the size of the candidate set; requests outside this range are clamped to 20 before
    top_p, min_p        [0, 1]
    presence_penalty, frequency_penalty
                        [-2, 2], over generated tokens of this request only
    seed                unsigned 64-bit key of the counter-based random numbers
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    seed: int


@dataclass(frozen=True, slots=True)
class Marks:
    """Places in a prompt, in tokens from its beginning, whose states later prompts are likely to share; 0 is none.

    turn            just before the turn that the answer continues, by the policy of serving spec 14.4
    message_begin   just before the last real user message
    message_end     just before the first answer to it
    preamble        behind the leading system turns
    """

    turn: int = 0
    message_begin: int = 0
    message_end: int = 0
    preamble: int = 0


class FinishReason(enum.Enum):
    """Why the engine stopped, in the words of the request log (serving spec, section 16.4)."""

    NONE = "none"
    OUTPUT_LIMIT = "output_limit"
    CONTEXT_CAPACITY = "context_capacity"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    CANCELLED = "cancelled"
