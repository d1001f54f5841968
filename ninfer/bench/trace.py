"""``ninfer-bench trace``: how much of an agent's prompts is read, against the least that has to be.

A generated conversation of a coding agent with tools, an edited memory block and parallel sub-agents goes through the
server's own chat template, tokenizer, gateway and scheduler; answers come from a script, so that no model is needed and
token counts are true. The least is each distinct token once: of every prompt the part behind its longest common
beginning with anything that was asked or answered before. The share is the least over what was read.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskStatus

from ninfer.actors.eventlog import EventLog
from ninfer.actors.messages import Admitted, Failed, Finished, GenerationRequest
from ninfer.actors.system import System
from ninfer.api.chat_request import parse_chat
from ninfer.api.preparation import Model, prepare, render, resolve_request_thinking
from ninfer.artifact.container import Artifact
from ninfer.bench.agent import PLACES, Agent, Message, Writer, trace
from ninfer.bench.report import Json, Output, Parser, add_output, apart, columns, head
from ninfer.config import Settings
from ninfer.embedded import ARTIFACT
from ninfer.engine.scripted import Answer, Script, ScriptedEngine
from ninfer.errors import StartupError
from ninfer.ledger import PromptIdentity
from ninfer.options import parse
from ninfer.served import ScriptedBuilder, Served, open_served
from ninfer.text.prompt import IM_END
from ninfer.text.tokenizer import Tokenizer

MAX_CONTEXT = 32768  # what the embedded model allows


def _parser() -> Parser:
    parser = Parser("ninfer-bench trace [options] -- [options of ninfer-serve]", __doc__)
    add = parser.add_argument
    add("--lanes", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N", help="servers to compare (1 2 4 8)")
    add("--sizes", choices=sorted(PLACES), nargs="+", default=["ordinary", "short"], help="of turns (both)")
    add("--turns", type=int, default=40, metavar="N", help="requests of the main conversation (40)")
    add("--edit-at", type=int, default=20, metavar="N", help="the one with an edited memory block (20)")
    add("--fork-at", type=int, default=10, metavar="N", help="the one behind which sub-agents work (10)")
    add("--agents", type=int, default=3, metavar="N", help="sub-agents at the same time (3)")
    add("--agent-turns", type=int, default=4, metavar="N", help="requests of each of them (4)")
    add("--max-tokens", type=int, default=2048, metavar="N", help="limit of every answer (2048); 0: none is asked for")
    add("--seed", type=int, default=1, metavar="N", help="of all words and sizes (1)")
    add("--folds-late", action="store_true", help="plan as for an engine of a GPU, whose states follow a round later")
    add_output(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """The subcommand; raises NinferError or OSError."""
    own_words, serve = apart(argv)
    options = _parser().parse_args(own_words)
    output = Output.of(options)
    traces = [
        played(options, sizes, lanes, serve) for sizes in options.sizes for lanes in options.lanes
    ]  # fmt: skip
    report: Json = {**head("ninfer_trace_report", argv), "traces": traces}
    output.deliver(report, lambda: table(report))
    return 0


class _Said(Script):
    """What was written for each prompt in advance."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__((), tokenizer)
        self.answers: dict[tuple[int, ...], tuple[int, ...]] = {}

    def answer(self, prompt: Sequence[int]) -> Answer:
        """That, or what any script says, which is for the warm-up."""
        ids = self.answers.get(tuple(prompt))
        return super().answer(prompt) if ids is None else Answer(ids, 0.0, 0.0)


class _Engine(ScriptedEngine):
    """The scripted engine, with states as late as those of a GPU if that is wanted."""

    late = False

    @property
    def folds_late(self) -> bool:
        """Whether a block that a round has filled becomes a state with the next."""
        return self.late


@dataclass
class Counts:
    """Tokens of prompts, the least that has to be read of them, and how requests began."""

    requests: int = 0
    prompt_tokens: int = 0
    least: int = 0
    ways: dict[str, int] = field(default_factory=dict)
    seen: list[tuple[int, ...]] = field(default_factory=list)

    def ask(self, prompt: tuple[int, ...], answer: tuple[int, ...]) -> None:
        """A prompt is sent."""
        self.requests += 1
        self.prompt_tokens += len(prompt)
        self.least += len(prompt) - max((common(prompt, other) for other in self.seen), default=0)
        self.seen.append(prompt + answer)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def played(options: argparse.Namespace, sizes: str, lanes: int, serve: Sequence[str]) -> Json:
    """One trace on one server."""
    fixed = ["--max-context", str(MAX_CONTEXT), "--kv-capacity", str(MAX_CONTEXT), "--pending-timeout-ms", "600000"]
    settings = parse([*fixed, *serve, "--max-concurrency", str(lanes)])
    settings = replace(settings, engine=replace(settings.engine, device="cpu"))
    with Artifact.open(ARTIFACT) as artifact:
        served = open_served(artifact, settings)
        try:
            counts, read = anyio.run(_play, options, sizes, settings, served)
        except ExceptionGroup as group:  # of the task group of the server
            raise group.exceptions[0] from None
    return {
        "sizes": sizes, "lanes": lanes, "requests": counts.requests, "prompt_tokens": counts.prompt_tokens,
        "read_tokens": read, "least_tokens": counts.least, "share": counts.least / read, "ways": counts.ways,
    }  # fmt: skip


async def _play(options: argparse.Namespace, sizes: str, settings: Settings, served: Served) -> tuple[Counts, int]:
    tokenizer, counts = served.model.tokenizer, Counts()
    said = _Said(tokenizer)
    with tempfile.TemporaryDirectory(prefix="ninfer-bench-") as folder:
        engine = _Engine(said, Path(folder) / "log", settings.engine.lanes)
        engine.late = options.folds_late
        builder = ScriptedBuilder(engine, served.bound.text, settings.engine)
        system = System(settings.scheduler, builder, tokenizer, EventLog(None), time.time)
        async with anyio.create_task_group() as tasks:
            await tasks.start(_serve, system)
            before = system.machine.statistics().totals.prefill_tokens
            writer = Writer(PLACES[sizes], options.seed)
            tools = writer.tools()
            shape = (options.turns, options.edit_at, options.fork_at, options.agents, options.agent_turns)
            for step in trace(writer, *shape):
                async with anyio.create_task_group() as clients:
                    for agent, answer in step.requests:
                        request, words = _request(agent, answer, tools, served.model, settings, options.max_tokens)
                        said.answers[request.prompt_ids] = words
                        counts.ask(request.prompt_ids, words)
                        agent.messages.append(answer)
                        clients.start_soon(_ask, system, request, counts)
            read = system.machine.statistics().totals.prefill_tokens - before
            system.stop()
    return counts, read


async def _serve(system: System, *, task_status: TaskStatus[None]) -> None:
    """Until it is told to stop; raises StartupError if it does not start."""
    if await system.run(lambda: None, task_status.started):
        raise StartupError(system.last_words)


def _request(
    agent: Agent, answer: Message, tools: Sequence[Message], model: Model, settings: Settings, most: int
) -> tuple[GenerationRequest, tuple[int, ...]]:
    """The prepared request, and the ids that it is answered: those which the template makes of the answer later."""
    body = {"model": model.public_id, "tools": list(tools), "enable_thinking": False, "max_tokens": most or None}
    asked = parse_chat({**body, "messages": agent.messages})
    thinking = resolve_request_thinking(asked, model, settings.generation)
    request = prepare(asked, thinking, model, settings.generation)
    calls: Sequence[Mapping[str, object]] = answer.get("tool_calls", ())  # type: ignore[assignment]
    if not calls:
        return request, tuple(model.tokenizer.encode_with_control(f"{answer['content']}{IM_END}"))
    result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": ""}
    whole = render(parse_chat({**body, "messages": [*agent.messages, answer, result]}), thinking, model).ids
    begin = len(request.prompt_ids)
    assert whole[:begin] == request.prompt_ids, "a call is rendered behind what asked for it"
    return request, whole[begin : whole.index(model.tokenizer.control_id(IM_END), begin) + 1]


async def _ask(system: System, request: GenerationRequest, counts: Counts) -> None:
    ticket = await system.gateway.arrive()
    try:
        identity = PromptIdentity.of(ticket.names, request.prompt_ids)
        await ticket.submit(replace(request, identity=identity))
        async for reply in ticket.replies:
            if isinstance(reply, Failed):
                raise reply.error
            if isinstance(reply, Admitted):
                counts.ways[reply.way] = counts.ways.get(reply.way, 0) + 1
            if isinstance(reply, Finished):
                break
    finally:
        await ticket.release()


def table(report: Mapping[str, Any]) -> str:
    """A line for each trace, and under them how requests began."""
    rows = [("sizes", "lanes", "requests", "of prompts", "read", "least", "share")]
    ways = []
    for one in report["traces"]:
        numbers = [f"{one[name]:,}" for name in ("requests", "prompt_tokens", "read_tokens", "least_tokens")]
        rows.append((one["sizes"], str(one["lanes"]), *numbers, f"{one['share']:.4f}"))
        ways.append((f"{one['sizes']}, {one['lanes']} lanes", ", ".join(f"{w} {n}" for w, n in one["ways"].items())))
    return f"{columns(rows)}\n" + "".join(f"{name}: {counts}\n" for name, counts in ways)
