"""A conversation of a coding agent, as its client sends it: tools, results, an edited memory block, sub-agents.

Every request has the whole conversation so far. Words are those of the packaged text in an order drawn from a seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ninfer.bench.corpus import PACKAGED

Message = Mapping[str, object]

TURNS_OF_A_TASK = 4  # the user speaks, then tools do three times


@dataclass(frozen=True, slots=True)
class Sizes:
    """About how many tokens things have; of those with several, one is drawn each time.

    tool, tools   the declaration of a tool, and how many there are
    """

    system: int
    tool: int
    tools: int
    memory: int
    question: tuple[int, ...]
    result: tuple[int, ...]
    answer: tuple[int, ...]


# Tools as many and as long as those that agents declare in the recorded runs (tests/clients/recorded): 9 to 24 tools,
# 1,600 to 4,400 tokens. Results there are those of toy tasks; these are of files and of test runs.
ORDINARY = Sizes(1500, 140, 15, 400, (60, 120, 250), (80, 200, 500, 1000), (60, 120, 200))
SHORT = Sizes(1000, 140, 15, 400, (60, 250), (60, 300, 900), (80, 120))
PLACES = {"ordinary": ORDINARY, "short": SHORT}


class Agent:
    """One conversation. `messages` is what the next request says."""

    def __init__(self, writer: Writer, system: Message, memory: str, number: int) -> None:
        self.writer = writer
        self.number = number
        self.messages: list[Message] = [system, {"role": "user", "content": f"<memory>\n{memory}\n</memory>"}]
        self._turns = 0

    def say(self) -> Message:
        """The user's or a tool's turn; returns what the model will answer: a call, or words at the end of a task."""
        sizes, words = self.writer.sizes, self.writer
        place = self._turns % TURNS_OF_A_TASK
        if not place:
            question = words.some(sizes.question)
            self.messages.append({"role": "user", "content": f"Task {self.number}.{self._turns}: {question}"})
        else:
            call = f"call_{self.number}_{self._turns - 1}"
            self.messages.append({"role": "tool", "tool_call_id": call, "content": words.some(sizes.result)})
        answer: dict[str, object] = {"role": "assistant", "content": words.some(sizes.answer)}
        if place + 1 < TURNS_OF_A_TASK:
            arguments = json.dumps({"path": f"src/{self.number}/{self._turns}.py", "query": words.text(12)})
            function = {"name": words.tool_name(self._turns), "arguments": arguments}
            call = f"call_{self.number}_{self._turns}"
            answer["tool_calls"] = [{"id": call, "type": "function", "function": function}]
        self._turns += 1
        return answer

    def remember(self, memory: str) -> None:
        """The client edits the memory block, which stands in front of all turns."""
        self.messages[1] = {"role": "user", "content": f"<memory>\n{memory}\n</memory>"}


@dataclass
class Writer:
    """Draws texts of about so many tokens."""

    sizes: Sizes
    seed: int
    _random: random.Random = field(init=False)
    _words: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._words = PACKAGED.read_text().split()

    def text(self, tokens: int) -> str:
        """Words for about so many tokens; a word of this text has one and a half."""
        return " ".join(self._random.choices(self._words, k=tokens * 2 // 3))

    def some(self, sizes: Sequence[int]) -> str:
        """A text of one of these sizes."""
        return self.text(self._random.choice(sizes))

    def tool_name(self, number: int) -> str:
        """Of one of the declared tools."""
        return f"tool_{number % self.sizes.tools}"

    def tools(self) -> list[Message]:
        """Declarations of functions with two parameters."""
        parameters = {"path": {"type": "string"}, "query": {"type": "string"}}
        schema = {"type": "object", "properties": parameters, "required": ["path"]}
        text = max(1, self.sizes.tool - 60)  # the rest is the form
        return [
            {"type": "function", "function": {"name": self.tool_name(at), "description": self.text(text),
                                              "parameters": schema}}
            for at in range(self.sizes.tools)
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """Agents that send a request at the same time, each with what it will be answered."""

    requests: tuple[tuple[Agent, Message], ...]


def trace(writer: Writer, turns: int, edit_at: int, fork_at: int, agents: int, agent_turns: int) -> Iterator[Step]:
    """A conversation of `turns` requests whose memory block is edited before one of them, and behind another one
    sub-agents with the same system prompt and tools, which work in parallel.
    """
    system: Message = {"role": "system", "content": writer.text(writer.sizes.system)}
    main = Agent(writer, system, writer.text(writer.sizes.memory), 0)
    for turn in range(turns):
        if turn == edit_at:
            main.remember(writer.text(writer.sizes.memory))
        yield Step(((main, main.say()),))
        if turn == fork_at:
            memory = writer.text(writer.sizes.memory)
            others = [Agent(writer, system, memory, 1 + number) for number in range(agents)]
            for _ in range(agent_turns):
                yield Step(tuple((agent, agent.say()) for agent in others))
