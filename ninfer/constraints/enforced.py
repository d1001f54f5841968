"""A constraint on its way through the server with one request."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ninfer.constraints.compiler import Compiled, Provenance
from ninfer.constraints.constraint import Constraint
from ninfer.constraints.matcher import Matcher, Reading
from ninfer.errors import DeadEnd, RequestRejected


@dataclass(frozen=True, slots=True)
class Enforced:
    """What a prepared request brings along. The matcher stands at the first draw and belongs to this request alone.

    mask       for the first draw; None if every id is legal
    prepare_s  time that compiling and setting up took
    mask_s     time that the first mask took
    """

    constraint: Constraint
    cache: Provenance
    matcher: Matcher = field(repr=False)
    mask: bytes | None = field(repr=False)
    prepare_s: float
    mask_s: float


def enforce(compiled: Compiled, reading: Reading, clock: Callable[[], float] = time.monotonic) -> Enforced:
    """The constraint at the start of a request; blocks. Raises RequestRejected for a dead end."""
    start = clock()
    matcher = compiled.matcher(reading)
    ready = clock()
    try:
        mask = matcher.mask()
    except DeadEnd as error:
        raise RequestRejected(str(error), code=DeadEnd.code) from None
    prepare_s = compiled.prepare_s + ready - start
    return Enforced(compiled.constraint, compiled.cache, matcher, mask, prepare_s, clock() - ready)
