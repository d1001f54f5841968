"""The warm-up: one short generation straight on the engine, so that the first client does not pay for first times."""

from __future__ import annotations

from ninfer.actors.engine import EngineLike
from ninfer.step import DecodeRound, DecodeRow, LaneSetup, PageMapping, PrefillChunk
from ninfer.types import Sampling

# Any ids do: what is drawn is thrown away. Every vocabulary has these.
PROMPT = (0, 1, 2, 3)
TOKENS = 4


def warm_up(engine: EngineLike, max_context_tokens: int, guesses: int = 0) -> None:
    """Generate at least four tokens on lane 0, or as many as the context holds, with up to so many guesses a round, and
    forget them.
    """
    greedy = Sampling(0.0, 20, 1.0, 0.0, 0.0, 0.0, 0)
    nothing = PageMapping(1, ())
    prompt = PROMPT[:max_context_tokens]
    engine.launch(PrefillChunk(0, 0, prompt, PageMapping(0, (0,)), LaneSetup(greedy, ()), sample=True)).wait()
    position = len(prompt)
    for _ in range(TOKENS - 1):
        if position >= max_context_tokens:
            break
        row = DecodeRow(0, position, nothing, drafts=min(guesses, max_context_tokens - 1 - position))
        (drawn,) = engine.launch(DecodeRound((row,))).wait().drawn
        position += len(drawn.token_ids)
    engine.reset()
