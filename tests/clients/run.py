"""Run the real agent programs against the real server, each through a task with a call, and keep their requests.

    python -m tests.clients.run FOLDER [NAME ...]

Needs Node 20 with npm, and a registry. The programs are installed into FOLDER, which is also their home.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.clients.agents import AGENTS, CONTEXT, MODEL, NOTE, SAID, WORD, Agent
from tests.clients.proxy import Exchange, proxy
from tests.clients.redact import Redaction
from tests.support.process import Process

RECORDED = Path(__file__).parent / "recorded"
TIMEOUT_S = 180


def install(agent: Agent, folder: Path) -> None:
    """Have npm install the pinned version."""
    package = f"{agent.package}@{agent.version}"
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
    subprocess.run(["npm", "install", *quiet, "--prefix", str(folder), package], check=True)
    if agent.setup is not None:
        script = folder / "node_modules" / agent.setup
        subprocess.run(["node", script.name], check=True, cwd=script.parent)


def perform(agent: Agent, folder: Path, url: str) -> str:
    """Give the program its task; returns what it printed."""
    home, task = folder / "home", folder / "task" / agent.name
    for path, content in agent.files(url).items():
        place = home / path.removeprefix("~/") if path.startswith("~/") else task / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    command = [str(folder / "node_modules" / ".bin" / agent.command[0]), *agent.command[1:], agent.task]
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "TERM": "dumb", **agent.environment(url)}
    done = subprocess.run(
        command, cwd=task, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    note = task / NOTE
    written = note.read_text() if note.exists() else None
    if done.returncode or written != WORD or SAID not in done.stdout:
        raise SystemExit(f"{agent.name} failed: status {done.returncode}, note {written!r}\n{done.stdout}{done.stderr}")
    return done.stdout


def recording(agent: Agent, exchanges: list[Exchange], folder: Path) -> dict[str, object]:
    """The fixture of a run."""
    redaction = Redaction(str(folder / "task" / agent.name), (agent.task, WORD, SAID))
    requests = [
        {
            "method": one.method,
            "path": one.path,
            "headers": redaction.headers(one.headers),
            "body": redaction.body(one.body),
        }
        for one in exchanges
    ]
    return {"client": agent.name, "version": agent.version, "requests": requests}


def main() -> None:
    folder, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
    for agent in AGENTS:
        if names and agent.name not in names:
            continue
        task = folder / "task" / agent.name
        task.mkdir(parents=True, exist_ok=True)
        (task / NOTE).unlink(missing_ok=True)
        install(agent, folder)
        script = folder / f"{agent.name}.jsonl"
        script.write_text(json.dumps(agent.script_line(task / NOTE)) + "\n")
        server = Process(
            *("--engine", "scripted", "--script", str(script), "--max-context", str(CONTEXT), "--model-id", MODEL)
        )
        try:
            server.wait_for("ready:")
            with proxy(server.port) as between:
                perform(agent, folder, between.url)
                exchanges = between.exchanges
        finally:
            server.process.terminate()
            server.end()
        faults = [f"{one.method} {one.path}: {one.status}" for one in exchanges if one.status != 200]
        text = json.dumps(recording(agent, exchanges, folder), indent=1, ensure_ascii=False)
        (RECORDED / f"{agent.name}.json").write_text(text + "\n")
        print(f"{agent.name} {agent.version}: task done, {len(exchanges)} requests", *faults, flush=True)


if __name__ == "__main__":
    main()
