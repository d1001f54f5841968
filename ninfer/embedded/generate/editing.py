"""Working on given text: repeat it, replace a word, pick or order the items of a list, write a story or a function."""

from __future__ import annotations

from random import Random

from ninfer.embedded.generate.conversation import Conversation, Turns
from ninfer.embedded.generate.prose import Prose, story
from ninfer.embedded.generate.words import COLOURS, FRUITS, GOODS, NOUNS, person, place, syllables

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_FUNCTIONS = {
    "add two numbers": ("add", "a, b", "return a + b"),
    "multiply two numbers": ("multiply", "a, b", "return a * b"),
    "subtract two numbers": ("subtract", "a, b", "return a - b"),
    "return the larger of two numbers": ("larger", "a, b", "return a if a > b else b"),
    "return the smaller of two numbers": ("smaller", "a, b", "return a if a < b else b"),
    "check whether a number is even": ("is_even", "n", "return n % 2 == 0"),
    "return the square of a number": ("square", "n", "return n * n"),
    "count the words of a text": ("count_words", "text", "return len(text.split())"),
    "reverse a list": ("reverse", "items", "return items[::-1]"),
    "return the last item of a list": ("last", "items", "return items[-1]"),
    "sum the numbers of a list": ("total", "numbers", "return sum(numbers)"),
    "turn a text into upper case": ("upper", "text", "return text.upper()"),
}


def _repeat(rng: Random, turns: Turns) -> None:
    prose = Prose(rng)
    if rng.random() < 0.4:
        text = " ".join(syllables(rng, 1, 3) for _ in range(rng.randint(3, 30)))
    else:
        text = " ".join(prose.sentence() for _ in range(rng.randint(1, 5)))
    ask = rng.choice(("Repeat this text exactly:", "Copy the following text:", "Say this again, word for word:"))
    turns.user(f"{ask} {text}")
    turns.assistant(text, "I repeat the text without any change.")


def _replace(rng: Random, turns: Turns) -> None:
    sentence = Prose(rng).sentence()
    old = rng.choice([word.strip('.,"') for word in sentence.split()])
    new = rng.choice((syllables(rng, 2, 3), rng.choice(NOUNS), rng.choice(COLOURS)))
    turns.user(f'Replace the word "{old}" by "{new}" in this sentence: {sentence}')
    words = [word.replace(old, new) if word.strip('.,"') == old else word for word in sentence.split(" ")]
    turns.assistant(" ".join(words), f"Every {old} becomes {new}.")


def _items(rng: Random) -> list[str]:
    pool = rng.choice((FRUITS, GOODS, COLOURS, NOUNS))
    return rng.sample(pool, rng.randint(3, 6))


def _pick(rng: Random, turns: Turns) -> None:
    items = _items(rng)
    spot = rng.randrange(len(items))
    turns.user(f"List: {', '.join(items)}. Which item is the {_ORDINALS[spot]} one?")
    turns.assistant(f"The {_ORDINALS[spot]} item is {items[spot]}.", f"I count to the {_ORDINALS[spot]} item.")


def _enumerate(rng: Random, turns: Turns) -> None:
    items = _items(rng)
    if rng.random() < 0.5:
        turns.user(f"Write these as a numbered list: {', '.join(items)}.")
        turns.assistant("\n".join(f"{n}. {item}" for n, item in enumerate(items, 1)), "One line for each item.")
    else:
        turns.user(f"Sort these words: {', '.join(items)}.")
        turns.assistant(", ".join(sorted(items)), "I put the words into the order of the alphabet.")


def _tell(rng: Random, turns: Turns) -> None:
    turns.user(rng.choice(("Tell me a story.", "Write a short story.", "Write a story of two paragraphs.")))
    turns.assistant(story(rng, 2), "A story needs people and a place.")


def _describe(rng: Random, turns: Turns) -> None:
    who, town = person(rng), place(rng)
    turns.user(f"Write one sentence that says that {who} lives in {town}.")
    turns.assistant(f"{who} lives in {town}.", "The sentence names the person and the town.")


def _program(rng: Random, turns: Turns) -> None:
    purpose, (name, arguments, body) = rng.choice(tuple(_FUNCTIONS.items()))
    ask = rng.choice(("Write a Python function to {}.", "I need a Python function to {}.", "Python: {}."))
    turns.user(ask.format(purpose))
    turns.assistant(f"```python\ndef {name}({arguments}):\n    {body}\n```", f"A function of one line can {purpose}.")


_KINDS = (_repeat, _repeat, _replace, _pick, _enumerate, _tell, _describe, _program)


def editing(rng: Random, thinking: bool, *, turns: int) -> Conversation:
    """`turns` small jobs on text."""
    collected = Turns(thinking)
    for _ in range(turns):
        rng.choice(_KINDS)(rng, collected)
    return collected.finish()
