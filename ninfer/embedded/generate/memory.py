"""Follow-ups: what was said or computed some turns ago is asked for again."""

from __future__ import annotations

from random import Random

from ninfer.embedded.generate.arithmetic import add_once
from ninfer.embedded.generate.conversation import Conversation, Turns
from ninfer.embedded.generate.facts import ATTRIBUTES, NAMES
from ninfer.embedded.generate.small_talk import one_exchange

_TOLD = (
    "My {kind} is {value}.",
    "Please remember: my {kind} is {value}.",
    "You should know that my {kind} is {value}.",
)
_ASKED = ("What is my {kind}?", "What was my {kind} again?", "Do you remember my {kind}?", "Tell me my {kind}.")
_SUM_AGAIN = ("What was the result of the sum?", "What did the sum give?", "Tell me the result of the sum again.")


def follow_up(rng: Random, thinking: bool, *, between: int = 1, questions: int = 1) -> Conversation:
    """Something is told, or a sum asked for, then `between` other turns, then it is asked back `questions` times."""
    turns = Turns(thinking)
    told = {kind: ATTRIBUTES[kind](rng) for kind in rng.sample(NAMES, questions)}
    if rng.random() < 0.25 and questions == 1:
        answer = add_once(rng, turns)
        for _ in range(between):
            one_exchange(rng, turns)
        turns.user(rng.choice(_SUM_AGAIN))
        turns.assistant(f"The result was {answer.rpartition(' ')[2]}.", f"The sum was {answer}.")
        return turns.finish()
    for kind, value in told.items():
        turns.user(rng.choice(_TOLD).format(kind=kind, value=value))
        turns.assistant(f"I will remember that your {kind} is {value}.", f"The user tells me a {kind}: {value}.")
    for _ in range(between):
        if rng.random() < 0.3:
            add_once(rng, turns)
        else:
            one_exchange(rng, turns)
    for kind, value in rng.sample(list(told.items()), len(told)):
        turns.user(rng.choice(_ASKED).format(kind=kind))
        turns.assistant(f"Your {kind} is {value}.", f"The user said before that the {kind} is {value}.")
    return turns.finish()
