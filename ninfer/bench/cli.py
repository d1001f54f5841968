"""``ninfer-bench``: speed of the engine, of a server, and of single kernels (speculation spec, 15.5).

A subcommand's modules are imported when it is chosen: the engine can be measured where no HTTP server is installed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from ninfer.errors import NinferError
from ninfer.version import VERSION

COMMANDS = {
    "engine": ("drive the engine without HTTP; the default", "ninfer.bench.engine"),
    "cohort": ("drive a running server as several clients", "ninfer.bench.cohort"),
    "serve-path": ("start a server, stream from it, and compare it with the engine alone", "ninfer.bench.serve_path"),
    "fairness": ("start a server, stream from it while a long prompt arrives", "ninfer.bench.fairness"),
    "token-cost": ("where the processor time of a streamed token goes, without a model", "ninfer.bench.token_cost"),
    "long-prompt": ("prepare a long conversation, and watch the event loop", "ninfer.bench.long_prompt"),
    "load": ("start a scripted server and crowd it", "ninfer.bench.load"),
    "scheduling": ("time of the scheduler's decisions, without a model", "ninfer.bench.scheduling"),
    "trace": ("play an agent's conversation and count what is read of its prompts", "ninfer.bench.trace"),
    "ops": ("time single kernels against their floors", "ninfer.bench.ops"),
    "compare": ("time other people's implementations beside ours", "ninfer.bench.compare"),
}


def usage() -> str:
    """The help text; ends with a newline."""
    lines = ["usage: ninfer-bench [COMMAND] ... [--help]", ""]
    lines += [f"  {name:<12} {summary}" for name, (summary, _module) in COMMANDS.items()]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(usage())
        return 0
    if words[0] == "--version":
        sys.stdout.write(f"ninfer-bench {VERSION}\n")
        return 0
    name = words.pop(0) if words[0] in COMMANDS else "engine"
    try:
        return int(importlib.import_module(COMMANDS[name][1]).main(words))
    except SystemExit as stop:  # --help of a subcommand
        return stop.code if isinstance(stop.code, int) else 0
    except (NinferError, OSError) as error:
        where = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        sys.stderr.write(f"error: {where}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
