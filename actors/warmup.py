"""The warm-up: one short generation straight on the engine, so that the first client does not pay for first times."""

from __future__ import annotations

from ninfer.actors.engine import EngineLike
from ninfer.step import DecodeRound, DecodeRow, LaneSetup, PageMapping, PrefillChunk
from ninfer.types import Sampling

# Any ids do: what is drawn is thrown away. Every vocabulary has these.
PROMPT = (0, 1, 2, 3)
TOKENS = 4


def warm_up(engine: EngineLike, guesses: int = 0) -> None:
    """Generate at least four tokens on lane 0, with up to so many guesses a round, and forget them."""
    greedy = Sampling(0.0, 20, 1.0, 0.0, 0.0, 0.0, 0)
    nothing = PageMapping(1, ())
    engine.launch(PrefillChunk(0, 0, PROMPT, PageMapping(0, (0,)), LaneSetup(greedy, ()), sample=True)).wait()
    position = len(PROMPT)
    for _ in range(TOKENS - 1):
        row = DecodeRow(0, position, nothing, drafts=guesses)
        (drawn,) = engine.launch(DecodeRound((row,))).wait().drawn
        position += len(drawn.token_ids)
    engine.reset()
