"""Facts about people: how a text states them, how they are asked for, and the one way in which they are answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ninfer.embedded.generate.words import (
    ANIMALS,
    COLOURS,
    FOODS,
    JOBS,
    LANGUAGES,
    SPORTS,
    WEEKDAYS,
    code,
    date,
    digits,
    person,
    place,
    syllables,
)

ATTRIBUTES: dict[str, Callable[[Random], str]] = {
    "access code": lambda rng: digits(rng, 4, 6),
    "phone number": lambda rng: digits(rng, 6, 7),
    "locker number": lambda rng: digits(rng, 2, 4),
    "room number": lambda rng: digits(rng, 2, 3),
    "order number": code,
    "ticket number": code,
    "password": lambda rng: syllables(rng, 2, 3),
    "secret word": lambda rng: syllables(rng, 2, 3),
    "home town": place,
    "birthday": date,
    "travel date": date,
    "favourite colour": lambda rng: rng.choice(COLOURS),
    "favourite food": lambda rng: rng.choice(FOODS),
    "favourite sport": lambda rng: rng.choice(SPORTS),
    "favourite animal": lambda rng: rng.choice(ANIMALS),
    "mother tongue": lambda rng: rng.choice(LANGUAGES),
    "profession": lambda rng: rng.choice(JOBS),
    "free day": lambda rng: rng.choice(WEEKDAYS),
    "best friend": person,
    "middle name": person,
}
NAMES = tuple(ATTRIBUTES)


@dataclass(frozen=True, slots=True)
class Fact:
    """The `attribute` of `who` is `value`."""

    who: str
    attribute: str
    value: str


# The first form is the one that answers use, and more than half of all statements.
STATEMENTS = (
    "The {attribute} of {who} is {value}.",
    "{who}'s {attribute} is {value}.",
    "Please note that the {attribute} of {who} is {value}.",
    "Everybody knows that {who}'s {attribute} is {value}.",
    "As for {who}, the {attribute} is {value}.",
)
QUESTIONS = (
    "What is the {attribute} of {who}?",
    "What is {who}'s {attribute}?",
    "Tell me the {attribute} of {who}.",
    "According to the text, what is the {attribute} of {who}?",
    "I need to know the {attribute} of {who}.",
    "Can you tell me {who}'s {attribute}?",
)
MANY_QUESTIONS = (
    "Answer these questions:",
    "Please answer all of these:",
    "I need several things from the text:",
)


def draw_facts(rng: Random, count: int) -> list[Fact]:
    """`count` facts with distinct (who, attribute); persons and attributes each occur several times."""
    people = list(dict.fromkeys(person(rng) for _ in range(max(2, count * 2 // 3))))
    kinds = rng.sample(NAMES, min(len(NAMES), max(3, count // 2)))
    pairs: dict[tuple[str, str], None] = {}
    while len(pairs) < min(count, len(people) * len(kinds)):
        pairs[rng.choice(people), rng.choice(kinds)] = None
    return [Fact(who, kind, ATTRIBUTES[kind](rng)) for who, kind in pairs]


def absent_fact(rng: Random, facts: list[Fact]) -> Fact:
    """A pair that no fact of the list has; half of the time its person or its attribute does occur in the list."""
    known = {(fact.who, fact.attribute) for fact in facts}
    while True:
        who = rng.choice(facts).who if rng.random() < 0.5 else person(rng)
        kind = rng.choice(facts).attribute if rng.random() < 0.7 else rng.choice(NAMES)
        if (who, kind) not in known:
            return Fact(who, kind, "")


def _written(form: str, fact: Fact) -> str:
    return form.format(who=fact.who, attribute=fact.attribute, value=fact.value)


def state(rng: Random, fact: Fact) -> str:
    """A sentence of the text."""
    return _written(STATEMENTS[0] if rng.random() < 0.55 else rng.choice(STATEMENTS[1:]), fact)


def ask(rng: Random, fact: Fact) -> str:
    return _written(rng.choice(QUESTIONS), fact)


def answer(fact: Fact) -> str:
    """The answer; a fact without value is one that the text does not hold."""
    if fact.value:
        return _written(STATEMENTS[0], fact)
    return f"I don't know. The text does not say what the {fact.attribute} of {fact.who} is."


def reason(fact: Fact) -> str:
    """What is thought before the answer."""
    looked = f"I have to find the {fact.attribute} of {fact.who} in the text."
    return f"{looked} It says: {answer(fact)}" if fact.value else f"{looked} It is not there."
