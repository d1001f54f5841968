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


class FinishReason(enum.Enum):
    """Why the engine stopped, in the words of the request log (serving spec, section 16.4)."""

    NONE = "none"
    OUTPUT_LIMIT = "output_limit"
    CONTEXT_CAPACITY = "context_capacity"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    CANCELLED = "cancelled"
