"""``ninfer-bench long-prompt``: a conversation of many messages and tools on its way from the body of a request to the
queue, part by part, and how long each part keeps the event loop from its work.

Every part runs on a worker thread, as in the server, while a probe on the event loop sleeps for one millisecond again
and again. How late it wakes up is how long the loop stood still: for a thread that held the interpreter, or for other
work on the machine, which this cannot tell apart. So it begins with a part in which nothing is done.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
from anyio import to_thread

from ninfer.api.body import parse_object
from ninfer.api.chat_request import parse_chat
from ninfer.api.preparation import Model, render, resolve_request_thinking
from ninfer.api.session import packed
from ninfer.artifact.container import Artifact
from ninfer.bench.event_loop import BOUND_S, Delays, Probe
from ninfer.bench.report import Json, Output, Parser, add_output, columns, head
from ninfer.config import GenerationSettings, Settings
from ninfer.embedded import ARTIFACT
from ninfer.ledger import BlockNames, PromptIdentity
from ninfer.served import open_served
from ninfer.speculation.copying import CopyRules
from ninfer.text.boundaries import ROLLING_TOOL, marks_of, turns_of
from ninfer.text.template import ChatTemplate, builtin_source
from ninfer.text.tokenizer import Tokenizer

T = TypeVar("T")

# As the server has it (ninfer/server.py).
SWITCH_INTERVAL_S = 0.001
TOOLS = 40
QUIET, QUIET_S = "nothing", 0.5
LINES = (
    "from __future__ import annotations\n",
    "def settle(memory: Memory, *, pages: int) -> Account:\n",
    '    """Give back what is not needed; raises Shortage when that is not enough."""\n',
    "    for page in sorted(memory.pages, key=lambda page: page.used_at)[:pages]:\n",
    "        memory.release(page)  # the oldest go first\n",
    "    return Account(memory.free, memory.total - memory.free, 0x1F4A9)\n",
    "\n",
)


def conversation(turns: int) -> bytes:
    """The body of a request with so many turns of a user, a call, its result and an answer, and with tools."""
    messages: list[Mapping[str, object]] = [{"role": "system", "content": "You help with code. " * 200}]
    for turn in range(turns):
        call = {"name": "read_file", "arguments": json.dumps({"path": f"src/part_{turn}.py", "lines": [1, turn]})}
        code = "".join(LINES[(turn + at) % len(LINES)] for at in range(21))
        messages += [
            {"role": "user", "content": f"Step {turn}: look at part_{turn}.py and say what is wrong with it."},
            {
                "role": "assistant",
                "content": f"I read part {turn}.",
                "reasoning_content": "The file has to be read first. " * 3,
                "tool_calls": [{"id": f"call_{turn:016x}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call_{turn:016x}", "content": code},
            {"role": "assistant", "content": f"Line {turn} is wrong – it says: {code[:150]}"},
        ]
    messages.append({"role": "user", "content": "Go on."})
    return json.dumps({"model": "m", "messages": messages, "tools": [_tool(at) for at in range(TOOLS)]}).encode()


def _tool(number: int) -> Json:
    properties = {f"p{at}": {"type": "string", "description": "one of its parameters"} for at in range(8)}
    return {
        "type": "function",
        "function": {
            "name": f"tool_{number}" if number else "read_file",
            "description": "Does something useful with a file. " * 10,
            "parameters": {"type": "object", "properties": properties},
        },
    }


async def measure(model: Model, body: bytes) -> tuple[int, list[Delays]]:
    """Tokens of the prompt, and each part of its preparation."""
    probe, parts = Probe(), []

    async def part(name: str, work: Callable[[], T]) -> T:
        async with probe.watching():
            begun = time.perf_counter()
            made = await to_thread.run_sync(work)
            seconds = time.perf_counter() - begun
            await anyio.sleep(BOUND_S)  # for the probe to say how late it was
        parts.append(probe.delays(name, seconds))
        return made

    await part(QUIET, lambda: time.sleep(QUIET_S))
    asked = await part("parse", lambda: parse_chat(parse_object(body)))
    thinking = resolve_request_thinking(asked, model, GenerationSettings())
    rendered = await part("render and tokenise", lambda: render(asked, thinking, model))
    ids = rendered.ids
    await part("turns", lambda: marks_of(turns_of(rendered.prompt, rendered.starts), len(ids), ROLLING_TOOL))
    await part("identity", lambda: PromptIdentity.of(BlockNames(b"k" * 32), packed(ids)))
    copying = CopyRules(barriers=frozenset(model.tokenizer.control_ids.values()))
    await part("index of copies", lambda: copying.index(ids, 1000))
    return len(ids), parts


def turns_for(model: Model, tokens: int) -> int:
    """Turns of a conversation of about so many tokens."""
    few, many = (_tokens_of(model, turns) for turns in (8, 40))
    return max(1, round((tokens - few) / ((many - few) / 32)) + 8)


def _tokens_of(model: Model, turns: int) -> int:
    asked = parse_chat(parse_object(conversation(turns)))
    return len(render(asked, resolve_request_thinking(asked, model, GenerationSettings()), model).ids)


def _model(file: Path, tokenizer: Path | None) -> Model:
    with Artifact.open(file) as artifact:
        model = open_served(artifact, Settings(file)).model
    if tokenizer is None:
        return model
    own = Tokenizer.from_resources(tokenizer.read_bytes(), None, None)
    template = ChatTemplate(builtin_source("qwen3_8"), tuple(own.control_ids))
    return replace(model, tokenizer=own, template=template)


def main(argv: Sequence[str]) -> int:
    """The subcommand; raises NinferError or OSError."""
    parser = Parser("ninfer-bench long-prompt [MODEL] [options]", __doc__)
    parser.add_argument("model", nargs="?", type=Path, default=ARTIFACT, help="an artifact (the embedded model)")
    parser.add_argument("--tokens", type=int, default=200_000, metavar="N", help="about how long it is (200000)")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json instead of the model's own")
    add_output(parser)
    options = parser.parse_args(argv)
    output = Output.of(options)
    model = _model(options.model, options.tokenizer)
    body = conversation(turns_for(model, options.tokens))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        tokens, parts = anyio.run(measure, model, body)
    finally:
        sys.setswitchinterval(interval)
    report: Json = {
        **head("ninfer_long_prompt_report", argv),
        "body_bytes": len(body),
        "tokens": tokens,
        "seconds": sum(part.seconds for part in parts if part.phase != QUIET),
        "parts": [asdict(part) for part in parts],
    }
    output.deliver(report, lambda: table(report))
    return 0


def table(report: Mapping[str, Any]) -> str:
    """One part per line."""
    rows = [(f"{report['tokens']} tokens", "seconds", "p99 late", "most late", "above 5 ms")]
    for part in report["parts"]:
        late = (f"{part['p99_ms']:.1f} ms", f"{part['max_ms']:.1f} ms", f"{part['above_bound']} of {part['samples']}")
        rows.append((part["phase"], f"{part['seconds']:.3f}", *late))
    return columns([*rows, ("together", f"{report['seconds']:.3f}", "", "", "")])
