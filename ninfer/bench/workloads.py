"""What the clients of ``ninfer-bench cohort`` ask for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ninfer.bench.corpus import PACKAGED
from ninfer.errors import StartupError

Body = Mapping[str, object]
BodyOf = Callable[[int], Body]
PROMPT_CHARACTERS = 28_000  # of the workload `prefill` (speculation spec, 15.4)
TOKEN_CHARACTERS = 4  # roughly, of English text
QUESTION = "Tell a long story about a lighthouse keeper, and do not come to an end."


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says about every request; None and empty leave it to the workload or the server."""

    prompt_tokens: int | None
    max_tokens: int | None
    fields: Body


def workload(name: str, overrides: Overrides) -> BodyOf:
    """The body of the nth request; raises StartupError for a file that is none of the built-in names."""
    if name == "generation_1k":
        return _fixed(overrides, 0, 1024)
    if name == "saturation":
        return _fixed(overrides, 0, 8192)
    if name == "prefill":
        return _fixed(overrides, PROMPT_CHARACTERS, 16)
    return _from_file(Path(name), overrides)


def _fixed(overrides: Overrides, characters: int, outputs: int) -> BodyOf:
    text = PACKAGED.read_text()
    length = characters if overrides.prompt_tokens is None else TOKEN_CHARACTERS * overrides.prompt_tokens
    limit = outputs if overrides.max_tokens is None else overrides.max_tokens

    def body(number: int) -> Body:
        # The number stands first: no two prompts begin alike, so none is found in a cache.
        story = (text * -(-length // len(text)))[:length]
        content = f"{number}. {story}\n\n{QUESTION}" if story else f"{number}. {QUESTION}"
        return {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": limit,
            "ignore_eos": True,  # the length is part of the workload
            **overrides.fields,
        }

    return body


def _from_file(path: Path, overrides: Overrides) -> BodyOf:
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        requests = [json.loads(line) for line in lines]
    except OSError as error:
        raise StartupError(f"--workload {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise StartupError(f"--workload {path} is not a file of JSON lines: {error}") from None
    if not requests or not all(isinstance(request, dict) and "messages" in request for request in requests):
        raise StartupError(f"--workload {path} must have lines with `messages`")

    def body(number: int) -> Body:
        request = dict(requests[number % len(requests)])
        if overrides.max_tokens is not None:
            request["max_tokens"] = overrides.max_tokens
        return {**request, **overrides.fields}

    return body
