"""Planned memory against what a device has less: ``python -m ninfer.bench.memory MODEL [server options] [--json]``.

In a process of its own, since torch keeps what an earlier measurement has freed. Loads the engine, reads a chunk, runs
every round, and compares the memory that the device has lost with the plan. Exit status 1 where the plan is exceeded,
or where it does not fit, with the server's own refusal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from ninfer.bench.driver import Driver
from ninfer.bench.loading import open_model
from ninfer.engine.device_engine import DeviceEngine
from ninfer.engine.devices import with_device
from ninfer.errors import StartupError
from ninfer.options import parse


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    parsed = parse([word for word in words if word != "--json"])
    settings = with_device(parsed.engine)
    device = torch.device(settings.device)
    if device.type != "cuda":
        sys.stderr.write("error: memory is measured on a GPU only\n")
        return 1
    torch.zeros(1, device=device)  # the context is not the engine's
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info(device)[0]
    with open_model(Path(parsed.artifact), settings) as model:
        try:
            engine = DeviceEngine.load(model.bound, settings, model.tokenizer.id_count)
        except StartupError as error:
            print(json.dumps({"refused": str(error)}) if as_json else f"refused: {error}")
            return 1
        _exercise(engine, settings.lanes, settings.prefill_chunk_tokens)
        torch.cuda.synchronize()
        used = before - torch.cuda.mem_get_info(device)[0]
    planned = engine.memory.required
    facts = {
        "planned": planned,
        "measured": used,
        "spare": planned - used,
        "allocated": engine.allocated_bytes,
        "groups": dict(engine.memory.groups),
        "kv_tokens": engine.memory.kv_capacity_tokens,
    }
    print(json.dumps(facts) if as_json else "\n".join(f"{name}: {value}" for name, value in facts.items()))
    return 0 if used <= planned else 1


def _exercise(engine: DeviceEngine, lanes: int, chunk: int) -> None:
    """A whole chunk in each of one lane, two lanes and so on, and a round of them."""
    for rows in range(1, lanes + 1):
        driver = Driver(engine, rows, chunk)
        driver.read(range(1, chunk + 1))
        driver.decode(1)


if __name__ == "__main__":
    sys.exit(main())
