"""Two thousand histories, 120 of them on the embedded model: every answer is that of a cold server.

Fifty thousand more of them on the embedded model: ``make histories-long``.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
import torch

from tests.sessions.histories import HISTORIES, InUse
from tests.sessions.long import IN_CI, WORLDS
from tests.sessions.worlds import World

EMBEDDED = range(12)  # servers of ten histories
SMALL = range(EMBEDDED.stop, IN_CI // HISTORIES)
EMBEDDED_PARTS = 4
SMALL_PARTS = 10


@cache
def world(name: str) -> World:
    torch.set_num_threads(1)
    return WORLDS[name]()


def played(name: str, servers: range) -> Counter[str]:
    events: Counter[str] = Counter()
    for server in servers:
        in_use = InUse(world(name), server)
        in_use.play()
        events += in_use.events
    return events


@pytest.mark.parametrize("part", range(EMBEDDED_PARTS))
def test_every_way_of_reuse_gives_the_answers_of_a_cold_server(part: int) -> None:
    events = played("embedded", EMBEDDED[part::EMBEDDED_PARTS])
    assert {"full_reset", "append_frontier", "inside a block", "append", "edit", "regenerate"} <= set(events), events


@pytest.mark.parametrize("part", range(SMALL_PARTS))
def test_every_way_of_reuse_gives_the_answers_of_a_cold_small_model(part: int) -> None:
    """Every part has almost everything in it."""
    events = played("small", SMALL[part::SMALL_PARTS])
    assert (events["right guesses"] > 20) == (SMALL[part] % 2 == 0), events
    happened = {
        "append", "edit", "regenerate", "branch", "left", "left in prefill", "saved", "restored",
        "full_reset", "append_frontier", "fork_shared_prefix", "restore_turn_checkpoint", "from host memory",
    }  # fmt: skip
    assert happened <= set(events), events
    assert events["inside a block"] > 10, events
    assert events["requests"] > 1.5 * events["full_reset"]
