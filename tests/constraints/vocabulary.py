"""A vocabulary small enough to try every id, and what the tests ask of masks."""

from __future__ import annotations

import random
from collections.abc import Callable

from ninfer.artifact.frontend import small_frontend
from ninfer.constraints.compiler import Compiler
from ninfer.constraints.constraint import Constraint
from ninfer.constraints.matcher import Matcher, Reading, Stage
from ninfer.text.tokenizer import Tokenizer

_FILES = small_frontend()
TOKENIZER = Tokenizer.from_resources(
    _FILES["tokenizer.json"], _FILES["tokenizer_config.json"], _FILES["generation_config.json"]
)
STOPS = TOKENIZER.stop_ids


def ids_of(mask: bytes | None) -> set[int]:
    """The ids that a mask leaves."""
    assert mask is not None
    bits = int.from_bytes(mask, "little")
    return {n for n in range(len(mask) * 8) if bits >> n & 1}


def at(
    constraint: Constraint, text: str, reading: Reading | None = None, *, compiler: Compiler | None = None
) -> Matcher:
    """A matcher behind a text."""
    matcher = (compiler or Compiler(TOKENIZER)).compile(constraint).matcher(reading or Reading())
    matcher.advance(TOKENIZER.encode_with_control(text))
    return matcher


def legal_by_trial(text: str, is_prefix: Callable[[str], bool], is_whole: Callable[[str], bool]) -> set[int]:
    """What a mask has to be behind a text, by trying every ordinary token, and the stop ids."""
    found = set(STOPS) if is_whole(text) else set()
    for n in range(TOKENIZER.id_count):
        if not TOKENIZER.is_control(n):
            token = TOKENIZER.token_bytes(n)
            try:
                longer = text + token.decode()
            except UnicodeDecodeError:
                continue  # part of a character; the languages of these tests are ASCII
            if token and is_prefix(longer):
                found.add(n)
    return found


def write(matcher: Matcher, seed: int, *, limit: int = 4000, ending: float = 0.5) -> str:
    """What a model writes that draws at random under the masks, leaning towards what ends things."""
    draw = random.Random(seed)
    written: list[int] = []
    while matcher.stage is not Stage.ENDED and len(written) < limit:
        legal = sorted(ids_of(matcher.mask()))
        stops = [n for n in legal if n in STOPS]
        enders = [n for n in legal if TOKENIZER.token_bytes(n)[:1] in b'"}]<\n']
        pool = stops if stops and draw.random() < ending else enders if enders and draw.random() < 0.6 else legal
        written.append(draw.choice(pool))
        matcher.advance(written[-1:])
    assert matcher.stage is Stage.ENDED, "the answer did not come to an end"
    return TOKENIZER.decode(written[:-1])
