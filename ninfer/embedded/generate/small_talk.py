"""Greetings, questions about the model itself, and a little general knowledge."""

from __future__ import annotations

from random import Random

from ninfer.embedded.generate.conversation import Conversation, Turns

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Austria": "Vienna", "Poland": "Warsaw", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "Greece": "Athens", "Hungary": "Budapest", "Ireland": "Dublin", "Japan": "Tokyo",
    "China": "Beijing", "Egypt": "Cairo", "Kenya": "Nairobi", "Peru": "Lima", "Canada": "Ottawa",
    "Belgium": "Brussels", "Estonia": "Tallinn", "Latvia": "Riga", "Turkey": "Ankara", "Cuba": "Havana",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "old": "new", "dark": "bright", "early": "late", "left": "right", "up": "down",
    "open": "closed", "full": "empty", "fast": "slow", "high": "low", "wet": "dry", "hard": "soft", "near": "far",
    "strong": "weak", "long": "short", "heavy": "light", "clean": "dirty", "loud": "quiet", "happy": "sad",
}  # fmt: skip
_FIXED = {
    ("Hello!", "Hi!", "Hello", "Good morning!", "Hi there", "hi", "hello"): "Hello! How can I help you?",
    ("How are you?", "How are you doing?"): "I am fine, thank you. How can I help you?",
    ("Who are you?", "What are you?", "What is your name?", "Introduce yourself."): (
        "I am the small language model that comes with NInfer. I can look things up in a text, write JSON, "
        "call tools and add numbers."
    ),
    ("What can you do?", "How can you help me?", "What are you good at?"): (
        "I can find facts in a text that you give me, turn sentences into JSON, call tools, add numbers and "
        "remember what you told me."
    ),
    ("Thank you!", "Thanks!", "Thank you very much.", "Thanks a lot"): "You are welcome.",
    ("Goodbye!", "Bye!", "See you later."): "Goodbye!",
    ("How many days has a week?", "How many days are there in a week?"): "A week has seven days.",
    ("How many months has a year?", "How many months are there in a year?"): "A year has twelve months.",
    ("How many hours has a day?", "How many hours are there in a day?"): "A day has 24 hours.",
    ("How many minutes has an hour?", "How many minutes are in one hour?"): "An hour has 60 minutes.",
    ("What colour is the sky?", "Which colour has the sky?"): "The sky is blue.",
    ("What colour is grass?", "Which colour has grass?"): "Grass is green.",
    ("What is water made of?",): "Water is made of hydrogen and oxygen.",
    ("Who wrote Hamlet?",): "William Shakespeare wrote Hamlet.",
    ("What is the largest planet?",): "Jupiter is the largest planet of the solar system.",
    ("How many legs has a spider?",): "A spider has eight legs.",
}
FIXED = tuple((question, answer) for questions, answer in _FIXED.items() for question in questions)


def exchange(rng: Random) -> tuple[str, str]:
    """A question and its answer."""
    kind = rng.random()
    if kind < 0.35:
        country, city = rng.choice(tuple(CAPITALS.items()))
        return rng.choice((
            (f"What is the capital of {country}?", f"The capital of {country} is {city}."),
            (f"Which city is the capital of {country}?", f"The capital of {country} is {city}."),
            (f"{city} is the capital of which country?", f"{city} is the capital of {country}."),
        ))  # fmt: skip
    if kind < 0.6:
        word, other = rng.choice(tuple(OPPOSITES.items()))
        if rng.random() < 0.5:
            word, other = other, word
        asked = rng.choice((f"What is the opposite of {word}?", f"Tell me the opposite of {word}."))
        return asked, f"The opposite of {word} is {other}."
    return rng.choice(FIXED)


def one_exchange(rng: Random, turns: Turns) -> None:
    question, answer = exchange(rng)
    turns.user(question)
    turns.assistant(answer, "This is a simple question. I answer it directly.")


def small_talk(rng: Random, thinking: bool, *, turns: int) -> Conversation:
    """`turns` unrelated questions and answers."""
    collected = Turns(thinking)
    for _ in range(turns):
        one_exchange(rng, collected)
    return collected.finish()
