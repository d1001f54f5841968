"""Plain English text from templates: the surroundings of facts, short stories, and text to predict."""

from __future__ import annotations

from random import Random

from ninfer.embedded.generate.words import (
    ADJECTIVES,
    ANIMALS,
    COLOURS,
    FOODS,
    FRUITS,
    GOODS,
    JOBS,
    NOUNS,
    ROOMS,
    SPORTS,
    WEEKDAYS,
    person,
    place,
)

# Letters in braces are drawn anew for every sentence; {p} and {q} are the story's persons, {t} its town.
SENTENCES = (
    "{p} walked along the {a} {n} and thought about the {m}.",
    "In the {r}, {p} found a {c} {g} that belonged to {q}.",
    "The {a} {n} near {t} was built many years ago.",
    "On {w}, {p} and {q} met at the {n} to talk about the {b} {m}.",
    "{p} had always wanted to see the {n} of {t}.",
    "It was raining, so {q} stayed in the {r} and read a book about the {m}.",
    "The {j} from {t} sold {f} and {o} at the market.",
    "{q} asked {p} whether the {n} was still {a}.",
    "Nobody knew why the {a} {n} had been left behind.",
    "After the meal of {o}, everybody went out to look at the {m}.",
    "{p} put the {g} on the table and opened the window.",
    "There was a {b} {n} on the other side of the {m}.",
    "The train to {t} was late again, and {q} had to wait for an hour.",
    "{p} played {s} every {w}, even when it was cold.",
    "A {a} {l} slept under the {g} and did not move.",
    "When the storm was over, the {n} looked {b} and {a}.",
    "{q} wrote a long letter to {p} about the {m} in {t}.",
    "The {j} repaired the {g} and asked for a cup of tea.",
    "Every morning the {l} ran from the {n} to the {m}.",
    "They carried the {f} from the {n} to the {r}.",
    "The road from {t} to the {n} is {a} but beautiful.",
    '"The {n} is too {a}," said {p}, and closed the door.',
    '"We should go to {t} on {w}," said {q}.',
    "At night the lights of the {n} could be seen from the {m}.",
    "{p} bought a {c} {g} and gave it to the {j}.",
    "The children painted the {n} {c} and the {m} {k}.",
    "Before the winter came, {q} had sold the {l} and the {g}.",
    "In the old days, a {j} lived in the {a} house by the {n}.",
    "The {m} was {b}, and the air smelled of {f}.",
    "Some people say that the {n} of {t} is the most {a} in the country.",
    "{p} learned {s} from a {j} who came from {t}.",
    "It took three days to bring the {g} from {t} to the {n}.",
)
_POOLS = {
    "a": ADJECTIVES,
    "b": ADJECTIVES,
    "c": COLOURS,
    "k": COLOURS,
    "n": NOUNS,
    "m": NOUNS,
    "g": GOODS,
    "j": JOBS,
    "f": FRUITS,
    "o": FOODS,
    "r": ROOMS,
    "s": SPORTS,
    "w": WEEKDAYS,
    "l": ANIMALS,
}


class Prose:
    """An endless text about two persons and a town that change with every paragraph."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.new_paragraph()

    def new_paragraph(self) -> None:
        self._people = {"p": person(self._rng), "q": person(self._rng), "t": place(self._rng)}

    def sentence(self) -> str:
        rng = self._rng
        drawn = {letter: rng.choice(pool) for letter, pool in _POOLS.items()}
        sentence = rng.choice(SENTENCES).format(**drawn, **self._people)
        for vowel in "aeiou":
            sentence = sentence.replace(f" a {vowel}", f" an {vowel}").replace(f"A {vowel}", f"An {vowel}")
        return sentence[0].upper() + sentence[1:]


def story(rng: Random, paragraphs: int) -> str:
    """Paragraphs of three to seven sentences with a blank line between them."""
    prose = Prose(rng)
    written = []
    for _ in range(paragraphs):
        written.append(" ".join(prose.sentence() for _ in range(rng.randint(3, 7))))
        prose.new_paragraph()
    return "\n\n".join(written)
