"""JSON objects from a sentence: the fields are named in the request, the values stand in the sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from ninfer.embedded.generate.conversation import Conversation, Turns
from ninfer.embedded.generate.words import (
    ANIMALS,
    COLOURS,
    FOODS,
    GOODS,
    JOBS,
    LANGUAGES,
    ROOMS,
    SPORTS,
    WEEKDAYS,
    date,
    join_words,
    person,
    place,
)

Value = str | int | bool
# Per field: its value, and the clause that says it. {subject} sentences begin with the subject of the schema.
Field = tuple[Callable[[Random], Value], str]

SCHEMAS: dict[str, tuple[str, Callable[[Random], str], dict[str, Field]]] = {
    "person": (
        "name",
        person,
        {
            "age": (lambda r: r.randint(18, 89), "is {} years old"),
            "city": (place, "lives in {}"),
            "job": (lambda r: r.choice(JOBS), "works as a {}"),
            "language": (lambda r: r.choice(LANGUAGES), "speaks {}"),
            "sport": (lambda r: r.choice(SPORTS), "likes {}"),
            "pet": (lambda r: r.choice(ANIMALS), "has a {}"),
            "children": (lambda r: r.randint(2, 6), "has {} children"),
            "birthday": (date, "was born on {}"),
            "food": (lambda r: r.choice(FOODS), "loves to eat {}"),
        },
    ),
    "product": (
        "product",
        lambda r: r.choice(GOODS),
        {
            "price": (lambda r: r.randint(5, 950), "costs {} euros"),
            "colour": (lambda r: r.choice(COLOURS), "is {}"),
            "weight": (lambda r: r.randint(2, 60), "weighs {} kilograms"),
            "maker": (person, "was made by {}"),
            "stock": (lambda r: r.randint(2, 400), "is in stock {} times"),
            "origin": (place, "comes from {}"),
            "room": (lambda r: r.choice(ROOMS), "belongs in the {}"),
        },
    ),
    "event": (
        "event",
        lambda r: r.choice(("concert", "meeting", "lecture", "party", "match", "exhibition", "workshop", "dinner")),
        {
            "date": (date, "takes place on {}"),
            "city": (place, "will be held in {}"),
            "guests": (lambda r: r.randint(10, 900), "expects {} guests"),
            "host": (person, "is organised by {}"),
            "price": (lambda r: r.randint(2, 90), "costs {} euros"),
            "hours": (lambda r: r.randint(2, 9), "lasts {} hours"),
            "weekday": (lambda r: r.choice(WEEKDAYS), "begins on a {}"),
        },
    ),
    "trip": (
        "traveller",
        person,
        {
            "from": (place, "starts in {}"),
            "to": (place, "travels to {}"),
            "date": (date, "leaves on {}"),
            "nights": (lambda r: r.randint(2, 21), "stays for {} nights"),
            "bags": (lambda r: r.randint(2, 7), "takes {} bags along"),
            "guide": (person, "is guided by {}"),
        },
    ),
}
_REQUESTS = (
    "Write a JSON object with the fields {fields} from this sentence: {sentence}",
    "Extract {fields} as JSON. {sentence}",
    "Give me a JSON object with the keys {fields}.\n\n{sentence}",
    "{sentence}\n\nTurn this into a JSON object with the fields {fields}.",
    "Read the sentence and answer with JSON only, with the fields {fields}: {sentence}",
)


def json_object(rng: Random, thinking: bool, *, turns: int = 1) -> Conversation:
    """`turns` requests for an object of three to six fields; the keys come in the order of the request."""
    collected = Turns(thinking)
    for _ in range(turns):
        schema = rng.choice(tuple(SCHEMAS))
        key, draw_subject, fields = SCHEMAS[schema]
        chosen = rng.sample(tuple(fields), rng.randint(2, 5))
        subject = draw_subject(rng)
        values: dict[str, Value] = {name: fields[name][0](rng) for name in chosen}
        clauses = [fields[name][1].format(values[name]) for name in chosen]
        sentence = f"{subject if schema in ('person', 'trip') else f'The {subject}'} {join_words(clauses)}."
        wanted = [key, *chosen]
        if rng.random() < 0.5:
            rng.shuffle(wanted)
        if len(wanted) > 3 and rng.random() < 0.3:
            wanted.pop()
        named = join_words(wanted)
        everything = {key: subject, **values}
        collected.user(rng.choice(_REQUESTS).format(fields=named, sentence=sentence))
        collected.assistant(
            json.dumps({name: everything[name] for name in wanted}),
            f"The object needs {named}. I take each value from the sentence.",
        )
    return collected.finish()
