"""Tool calls: four declared tools, one that fits; results and what is said about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from ninfer.embedded.generate.conversation import Conversation, Turns
from ninfer.embedded.generate.words import (
    COLOURS,
    FOODS,
    GOODS,
    LANGUAGES,
    MONTHS,
    ROOMS,
    WEEKDAYS,
    code,
    date,
    digits,
    person,
    place,
    syllables,
)

Value = str | int


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; `clause` says its value in a request, empty where the request's own wording does."""

    name: str
    kind: str
    description: str
    draw: Callable[[Random], Value]
    clause: str


@dataclass(frozen=True, slots=True)
class Thing:
    """What tools act on."""

    phrase: str
    parameters: tuple[Parameter, ...]


def _text(name: str, description: str, draw: Callable[[Random], str], clause: str) -> Parameter:
    return Parameter(name, "string", description, draw, clause)


def _number(name: str, description: str, low: int, high: int, clause: str) -> Parameter:
    return Parameter(name, "integer", description, lambda rng: rng.randint(low, high), clause)


def _time(rng: Random) -> str:
    return f"{rng.randint(6, 22)}:{rng.choice(('00', '15', '30', '45'))}"


VERBS = {
    "get": "Get",
    "find": "Find",
    "show": "Show",
    "create": "Create",
    "delete": "Delete",
    "update": "Update",
    "send": "Send",
    "check": "Check",
    "cancel": "Cancel",
    "open": "Open",
}
THINGS = {
    "weather": Thing(
        "weather",
        (
            _text("city", "Name of the city", place, "in {}"),
            _text("day", "Day of the week", lambda r: r.choice(WEEKDAYS), "on {}"),
        ),
    ),
    "alarm": Thing(
        "alarm",
        (
            _text("time", "Time of the day", _time, "at {}"),
            _text("room", "Room of the house", lambda r: r.choice(ROOMS), "in the {}"),
        ),
    ),
    "message": Thing(
        "message",
        (
            _text("recipient", "Name of the person", person, "for {}"),
            _text("word", "Subject of the message", lambda r: syllables(r, 2, 3), "about {}"),
        ),
    ),
    "order": Thing(
        "order",
        (
            _text("order_id", "Code of the order", code, "with the code {}"),
            _number("amount", "Number of pieces", 2, 99, "for {} pieces"),
        ),
    ),
    "flight": Thing(
        "flight",
        (
            _text("destination", "City of arrival", place, "to {}"),
            _text("date", "Day of travel", date, "on {}"),
            _number("seats", "Number of seats", 2, 9, "with {} seats"),
        ),
    ),
    "room": Thing(
        "room",
        (
            _number("number", "Number of the room", 10, 999, "number {}"),
            _text("floor", "Name of the floor", lambda r: r.choice(COLOURS), "on the {} floor"),
        ),
    ),
    "recipe": Thing(
        "recipe",
        (
            _text("dish", "Name of the dish", lambda r: r.choice(FOODS), "for {}"),
            _number("people", "Number of people", 2, 12, "for {} people"),
        ),
    ),
    "file": Thing(
        "file",
        (
            _text("path", "Path of the file", lambda r: f"/{syllables(r, 1, 2)}/{syllables(r, 1, 2)}.txt", "at {}"),
            _number("line", "Line number", 2, 500, "at line {}"),
        ),
    ),
    "contact": Thing(
        "contact",
        (
            _text("name", "Name of the contact", person, "called {}"),
            _text("phone", "Phone number", lambda r: digits(r, 6, 7), "with the phone number {}"),
        ),
    ),
    "meeting": Thing(
        "meeting",
        (
            _text("person", "Who takes part", person, "with {}"),
            _text("time", "Time of the day", _time, "at {}"),
            _text("city", "Place of the meeting", place, "in {}"),
        ),
    ),
    "report": Thing(
        "report",
        (
            _text("month", "Name of the month", lambda r: r.choice(MONTHS), "of {}"),
            _number("year", "Year of the report", 1990, 2040, "from {}"),
        ),
    ),
    "price": Thing(
        "price",
        (
            _text("product", "Name of the product", lambda r: r.choice(GOODS), "of the {}"),
            _text("shop", "Name of the shop", person, "in the shop of {}"),
        ),
    ),
    "translation": Thing(
        "translation",
        (
            _text("word", "Word to translate", lambda r: syllables(r, 2, 3), "of the word {}"),
            _text("language", "Language of the result", lambda r: r.choice(LANGUAGES), "into {}"),
        ),
    ),
    "light": Thing(
        "light",
        (
            _text("room", "Room of the house", lambda r: r.choice(ROOMS), "in the {}"),
            _number("level", "Brightness", 2, 100, "with level {}"),
        ),
    ),
    "ticket": Thing(
        "ticket",
        (
            _text("ticket_id", "Code of the ticket", code, "with the number {}"),
            _text("owner", "Name of the owner", person, "that belongs to {}"),
        ),
    ),
    "account": Thing(
        "account",
        (
            _text("user", "Name of the user", person, "of {}"),
            _number("amount", "Amount in euros", 2, 900, "with {} euros"),
        ),
    ),
}
_REQUESTS = (
    "{ask}.",
    "Please {lower}.",
    "Can you {lower}?",
    "I want you to {lower}.",
    "Could you please {lower}?",
    "I would like to {lower}.",
)
_RESULTS = ("Done.", "ok", "The request was successful.", '{"status": "ok"}')


@dataclass(frozen=True, slots=True)
class Tool:
    """A declared function and what a request for it says."""

    verb: str
    thing: str
    parameters: tuple[Parameter, ...]

    @property
    def name(self) -> str:
        return f"{self.verb}_{self.thing}"

    def declaration(self) -> Mapping[str, object]:
        properties = {p.name: {"type": p.kind, "description": p.description} for p in self.parameters}
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": f"{VERBS[self.verb]} the {THINGS[self.thing].phrase}.",
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": [p.name for p in self.parameters],
                },
            },
        }

    def request(self, rng: Random) -> tuple[str, dict[str, Value]]:
        """A request for this tool, and the arguments that it holds."""
        arguments = {p.name: p.draw(rng) for p in self.parameters}
        clauses = [p.clause.format(arguments[p.name]) for p in self.parameters]
        ask = " ".join([f"{VERBS[self.verb]} the {THINGS[self.thing].phrase}", *clauses])
        return rng.choice(_REQUESTS).format(ask=ask, lower=ask[0].lower() + ask[1:]), arguments


def draw_tools(rng: Random, count: int) -> list[Tool]:
    """`count` tools of distinct names, some of which share a verb or a thing."""
    verbs = rng.sample(tuple(VERBS), min(len(VERBS), 3))
    things = rng.sample(tuple(THINGS), 3)
    names: dict[tuple[str, str], None] = {}
    while len(names) < count:
        names[rng.choice(verbs), rng.choice(things)] = None
    tools = []
    for verb, thing in names:
        known = THINGS[thing].parameters
        tools.append(Tool(verb, thing, known[: rng.randint(1, len(known))]))
    return tools


def tool_call(rng: Random, thinking: bool, *, turns: int = 1, follow: bool = False) -> Conversation:
    """`turns` requests, each for one of four tools.

    follow   the last call, too, is followed by its result and an answer; without it the conversation ends at the call
    """
    tools = draw_tools(rng, 4)
    collected = Turns(thinking)
    for n in range(turns):
        tool = rng.choice(tools)
        request, arguments = tool.request(rng)
        collected.user(request)
        call = {"name": tool.name, "arguments": arguments}
        collected.assistant(
            "", f"The user wants to {tool.verb} the {THINGS[tool.thing].phrase}. I call {tool.name}.", (call,)
        )
        if follow or n + 1 < turns:
            _result(rng, collected, tool)
    return collected.finish(tuple(tool.declaration() for tool in tools))


def _result(rng: Random, turns: Turns, tool: Tool) -> None:
    phrase = THINGS[tool.thing].phrase
    if tool.verb in ("get", "find", "show", "check"):
        value = rng.choice((syllables(rng, 2, 3), digits(rng, 1, 4), rng.choice(COLOURS), place(rng), code(rng)))
        turns.tool(f"{phrase}: {value}" if rng.random() < 0.5 else value)
        turns.assistant(f"The result for the {phrase} is {value}.", f"The tool has returned {value}.")
    else:
        turns.tool(rng.choice(_RESULTS))
        turns.assistant(f"The {phrase} is done.", "The tool has done its work.")
