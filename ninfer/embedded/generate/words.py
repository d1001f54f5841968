"""Word lists and made-up names. A made-up name is drawn from millions, so that held-out cases hold unseen ones."""

# ruff: noqa: SIM905 (a list of ninety quoted words is harder to read than one string)
from __future__ import annotations

from random import Random

FIRST_NAMES = tuple(
    "Ada Alan Alma Amir Anna Anton Aria Ben Bella Boris Bruno Carla Carlos Celia Chen Clara Daniel Daria David Diana "
    "Dora Edgar Elena Elif Elias Emil Emma Erik Eva Farid Felix Fiona Frida Georg Gina Greta Hana Hassan Helen Henrik "
    "Hugo Ida Igor Ines Ingrid Irene Ivan Jakob James Jana Jonas Julia Karim Karl Kira Lara Laura Leo Lena Liam Lina "
    "Luca Lucy Magnus Maria Marta Martin Max Maya Mila Mona Nadia Nico Nina Noah Nora Olga Oliver Omar Oscar Pablo "
    "Paula Peter Petra Pia Quinn Rafael Rosa Ruben Sadia Sam Sara Simon Sofia Stefan Tara Theo Thomas Tina Uma Vera "
    "Victor Viola Walter Wanda Yara Yusuf Zoe".split()
)
CITIES = tuple(
    "Amsterdam Athens Barcelona Bergen Berlin Bern Bologna Boston Bremen Brussels Budapest Cairo Chicago Cologne "
    "Copenhagen Dakar Delhi Denver Dresden Dublin Geneva Ghent Hamburg Hanoi Helsinki Kyoto Leeds Leipzig Lima Lisbon "
    "London Lyon Madrid Malmo Milan Montreal Moscow Munich Nairobi Naples Oslo Oxford Paris Porto Prague Quito Riga "
    "Rome Seoul Seville Sofia Sydney Tallinn Tokyo Toronto Turin Utrecht Valencia Venice Vienna Warsaw Zurich".split()
)
COLOURS = tuple("red green blue yellow orange purple black white grey brown pink silver golden violet".split())
ANIMALS = tuple("cat dog horse rabbit parrot hamster turtle goldfish goat sheep duck hen owl fox donkey pony".split())
JOBS = tuple(
    "baker teacher doctor painter gardener plumber nurse pilot farmer lawyer carpenter journalist chemist dentist "
    "librarian mechanic musician postman sailor tailor translator waiter photographer electrician".split()
)
FRUITS = tuple("apples pears plums cherries grapes lemons oranges peaches bananas melons figs dates".split())
GOODS = tuple(
    "lamp chair table bicycle kettle backpack jacket clock mirror radio camera notebook umbrella carpet bottle pillow "
    "blanket suitcase guitar telescope keyboard ladder hammer basket".split()
)
FOODS = tuple("soup bread rice pasta salad pizza cheese curry pancakes dumplings stew noodles omelette".split())
SPORTS = tuple("tennis football chess swimming cycling hockey rowing climbing running skiing fencing golf".split())
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
LANGUAGES = tuple("English French German Spanish Italian Greek Polish Dutch Danish Finnish Turkish Arabic".split())
ROOMS = tuple("kitchen bedroom bathroom hallway cellar attic office garage library workshop".split())
NOUNS = tuple(
    "river bridge house garden window door tree letter book train boat road hill lake market church school tower "
    "field forest harbour village station street square mill farm island valley museum theatre castle well path "
    "fence roof stone cloud storm morning evening song picture story map key box coin cup basket rope candle "
    "ship wheel engine machine table bench bell clock".split()
)
ADJECTIVES = tuple(
    "old new small large quiet bright dark warm cold narrow wide long short heavy light strange simple empty green "
    "grey wooden broken clean dusty early late gentle famous hidden lonely rusty silent steep tall tiny".split()
)

_ONSETS = tuple("b br c ch d dr f fl g gr h j k kl l m n p pl pr qu r s sh sk st t th tr v w y z".split())
_VOWELS = tuple("a e i o u a e i o ai ea oo".split())
_CODAS = ("", "", "", "l", "n", "r", "s", "m", "t", "k", "nd", "rt", "x")


def syllables(rng: Random, least: int, most: int) -> str:
    """A pronounceable lower-case word of `least` to `most` syllables."""
    count = rng.randint(least, most)
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(count))


def person(rng: Random) -> str:
    """A first name, two thirds of the time a made-up one."""
    return rng.choice(FIRST_NAMES) if rng.random() < 0.34 else syllables(rng, 2, 3).capitalize()


def place(rng: Random) -> str:
    """A town, half of the time a made-up one."""
    return rng.choice(CITIES) if rng.random() < 0.5 else syllables(rng, 2, 3).capitalize()


def digits(rng: Random, least: int, most: int) -> str:
    """A run of `least` to `most` decimal digits without a leading zero."""
    count = rng.randint(least, most)
    return str(rng.randrange(10 ** (count - 1), 10**count))


def date(rng: Random) -> str:
    """A day of the year, as in `14 March`."""
    return f"{rng.randint(1, 28)} {rng.choice(MONTHS)}"


def code(rng: Random) -> str:
    """An order code, as in `KD-4821`."""
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
    return f"{rng.choice(letters)}{rng.choice(letters)}-{digits(rng, 3, 4)}"


def join_words(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
