"""Look-ups in texts of any length: one fact, five facts, a fact that is not there, dense lists of records."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ninfer.embedded.generate.conversation import Conversation, Turns
from ninfer.embedded.generate.facts import MANY_QUESTIONS, Fact, absent_fact, answer, ask, draw_facts, reason, state
from ninfer.embedded.generate.prose import Prose
from ninfer.embedded.generate.words import digits, person, syllables

# Characters of English text per token of the embedded vocabulary; lengths of texts are set with it.
CHARACTERS_PER_TOKEN = 4.2

# Draws about so many characters of surrounding text, in sentences or lines.
Filler = Callable[[Random, int], list[str]]

_HEADS = (
    "Read this text and answer the question below it.",
    "Here is a text.",
    "Please read the following notes.",
    "This is my report:",
    "Text:",
)


def prose_filler(rng: Random, characters: int) -> list[str]:
    """Generated sentences of about `characters` characters in all."""
    prose = Prose(rng)
    sentences: list[str] = []
    while characters > 0:
        if rng.random() < 0.2:
            prose.new_paragraph()
        sentences.append(prose.sentence())
        characters -= len(sentences[-1]) + 1
    return sentences


def text_with(rng: Random, facts: list[Fact], tokens: int, filler: Filler = prose_filler) -> str:
    """A text of about `tokens` tokens that states `facts` at random places."""
    stated = [state(rng, fact) for fact in facts]
    around = filler(rng, max(0, int(tokens * CHARACTERS_PER_TOKEN) - sum(map(len, stated))))
    places = sorted(rng.randrange(len(around) + 1) for _ in stated)
    lines: list[str] = []
    done = 0
    for sentence, spot in zip(stated, places, strict=True):
        lines += around[done:spot]
        lines.append(sentence)
        done = spot
    lines += around[done:]
    # Sentences of one paragraph share a line; a filler of lines keeps its own line ends.
    text = "".join(
        line if line.endswith("\n") else f"{line}\n\n" if rng.random() < 0.15 else f"{line} " for line in lines
    )
    return text.strip()


def _open(rng: Random, turns: Turns, text: str, question: str) -> None:
    head = rng.choice(_HEADS)
    if rng.random() < 0.75:
        turns.user(f"{head}\n\n{text}\n\n{question}")
        return
    turns.user(f"{head}\n\n{text}")
    turns.assistant("I have read the text.", "The user gives me a text. I should read it and wait for a question.")
    turns.user(question)


def lookup(
    rng: Random,
    thinking: bool,
    *,
    tokens: int,
    facts: int,
    questions: int,
    absent: float,
    filler: Filler = prose_filler,
) -> Conversation:
    """A text of about `tokens` tokens with `facts` facts, then `questions` questions in as many turns.

    absent   share of questions for a fact that is not in the text
    """
    known = draw_facts(rng, facts)
    turns = Turns(thinking)
    text = text_with(rng, known, tokens, filler)
    for n in range(questions):
        fact = absent_fact(rng, known) if rng.random() < absent else rng.choice(known)
        if n == 0:
            _open(rng, turns, text, ask(rng, fact))
        else:
            turns.user(ask(rng, fact))
        turns.assistant(answer(fact), reason(fact))
    return turns.finish()


def five_facts(
    rng: Random, thinking: bool, *, tokens: int, facts: int, rounds: int = 1, filler: Filler = prose_filler
) -> Conversation:
    """Five questions at once about a text of about `tokens` tokens; `rounds` such turns."""
    known = draw_facts(rng, max(5, facts))
    turns = Turns(thinking)
    text = text_with(rng, known, tokens, filler)
    for n in range(rounds):
        asked = rng.sample(known, 5)
        lines = [f"{i}. {ask(rng, fact)}" for i, fact in enumerate(asked, 1)]
        question = "\n".join([rng.choice(MANY_QUESTIONS), *lines])
        if n == 0:
            _open(rng, turns, text, question)
        else:
            turns.user(question)
        turns.assistant(
            "\n".join(f"{i}. {answer(fact)}" for i, fact in enumerate(asked, 1)),
            "There are five questions. I look up each fact in the text and answer them in order.",
        )
    return turns.finish()


def records(rng: Random, thinking: bool, *, entries: int, questions: int) -> Conversation:
    """A list of `key: value` lines and questions about it."""
    keys = list(dict.fromkeys(syllables(rng, 1, 3) if rng.random() < 0.5 else person(rng) for _ in range(entries)))
    table = {key: digits(rng, 1, 5) if rng.random() < 0.7 else syllables(rng, 1, 3) for key in keys}
    turns = Turns(thinking)
    lines = "\n".join(f"{key}: {value}" for key, value in table.items())
    for n in range(questions):
        key = rng.choice(keys)
        question = rng.choice((f"What is the value of {key}?", f"Look up {key}.", f"{key}?", f"Which value has {key}?"))
        if n == 0:
            turns.user(
                f"{rng.choice(('Here is a table.', 'Table:', 'Remember these entries:'))}\n\n{lines}\n\n{question}"
            )
        else:
            turns.user(question)
        turns.assistant(f"{key}: {table[key]}", f"I look for the line of {key}.")
    return turns.finish()
