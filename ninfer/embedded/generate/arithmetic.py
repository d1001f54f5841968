"""Sums and differences of whole numbers, answered at once or after writing the digits from the right."""

from __future__ import annotations

from random import Random

from ninfer.embedded.generate.conversation import Conversation, Turns

_ADD = (
    "What is {a} + {b}?",
    "{a} + {b} = ?",
    "Add {a} and {b}.",
    "Calculate {a} + {b}.",
    "How much is {a} plus {b}?",
    "Please compute the sum of {a} and {b}.",
)
_SUBTRACT = ("What is {a} - {b}?", "Calculate {a} - {b}.", "How much is {a} minus {b}?", "Subtract {b} from {a}.")


def is_held_out(a: int, b: int) -> bool:
    """One pair of summands in sixteen is kept out of training, in either order."""
    low, high = sorted((a, b))
    return (low * 7919 + high * 104729) % 16 == 3


def draw_pair(rng: Random, *, held_out: bool) -> tuple[int, int]:
    """Two numbers of two or three digits each, of the held-out pairs or of the others."""
    while True:
        a, b = (rng.randrange(10, 1000) if rng.random() < 0.5 else rng.randrange(100, 1000) for _ in range(2))
        if is_held_out(a, b) == held_out:
            return a, b


def explain_sum(a: int, b: int) -> str:
    """The written addition, digit by digit from the right."""
    left, right = str(a)[::-1], str(b)[::-1]
    carry = 0
    lines = []
    for i in range(max(len(left), len(right))):
        x, y = (int(digits[i]) if i < len(digits) else 0 for digits in (left, right))
        total = x + y + carry
        lines.append(f"{x} + {y} + {carry} = {total}, digit {total % 10}, carry {total // 10}")
        carry = total // 10
    return "\n".join([*lines, f"The sum is {a + b}."])


def add_once(rng: Random, turns: Turns, *, held_out: bool = False) -> str:
    """One question for a sum with its answer; returns the answer."""
    a, b = draw_pair(rng, held_out=held_out)
    turns.user(rng.choice(_ADD).format(a=a, b=b))
    answer = f"{a} + {b} = {a + b}"
    turns.assistant(answer, explain_sum(a, b))
    return answer


def _small_add(rng: Random, turns: Turns) -> None:
    a, b = rng.randrange(0, 20), rng.randrange(0, 100)
    if is_held_out(a, b):
        a, b = 2, 2
    turns.user(rng.choice(_ADD).format(a=a, b=b))
    turns.assistant(f"{a} + {b} = {a + b}", explain_sum(a, b))


def _subtract(rng: Random, turns: Turns) -> None:
    a, b = sorted((rng.randrange(0, 200), rng.randrange(0, 200)), reverse=True)
    turns.user(rng.choice(_SUBTRACT).format(a=a, b=b))
    turns.assistant(f"{a} - {b} = {a - b}", f"I take {b} away from {a}. That leaves {a - b}.")


def sums(rng: Random, thinking: bool, *, turns: int, held_out: bool = False) -> Conversation:
    """`turns` sums in one conversation; in training a few of them are small sums or differences."""
    collected = Turns(thinking)
    for _ in range(turns):
        kind = rng.random()
        if held_out or kind < 0.8:
            add_once(rng, collected, held_out=held_out)
        elif kind < 0.9:
            _small_add(rng, collected)
        else:
            _subtract(rng, collected)
    return collected.finish()
