"""The agent programs that are checked against the server: how each is had, pointed at it, and given its task."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MODEL = "ninfer-embedded"
CONTEXT = 32768
NOTE = "note.txt"
WORD = "harvest"
SAID = "The note is written."


@dataclass(frozen=True, slots=True)
class Agent:
    """One program.

    package, version   of npm
    setup              script of the package that puts its binary in place, relative to node_modules
    command            name in node_modules/.bin, and arguments in front of the task
    tool, parameters   the call that writes the note; `{note}` is the path of the note
    environment        of the program, given the address of the server (without /v1)
    files              to be written before the start, by path relative to the home (`~/`) or to the task's folder
    """

    name: str
    package: str
    version: str
    setup: str | None
    command: Sequence[str]
    tool: str
    parameters: Mapping[str, str]
    environment: Callable[[str], Mapping[str, str]]
    files: Callable[[str], Mapping[str, str]]

    @property
    def task(self) -> str:
        return f"Write the {WORD} note for {self.name}."

    def script_line(self, note: Path) -> dict[str, object]:
        """What the scripted engine says: the call, and the end once its result is there."""
        parameters = "".join(
            f"<parameter={name}>\n{value.format(note=note)}\n</parameter>\n" for name, value in self.parameters.items()
        )
        call = f"<tool_call>\n<function={self.tool}>\n{parameters}</function>\n</tool_call>"
        output = f"I will write it.\n</think>\n\nI write the note.\n\n{call}"
        return {"match": self.task, "output": output, "then": [f"It is there.\n</think>\n\n{SAID}"]}


def _nothing(_url: str) -> Mapping[str, str]:
    return {}


def _claude_environment(url: str) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "any",
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    }


def _codex_files(url: str) -> Mapping[str, str]:
    return {
        "~/.codex/config.toml": f"""model = "{MODEL}"
model_provider = "ninfer"
model_context_window = {CONTEXT}

[model_providers.ninfer]
name = "NInfer"
base_url = "{url}/v1"
wire_api = "responses"
"""
    }


def _qwen_environment(url: str) -> Mapping[str, str]:
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "any", "OPENAI_MODEL": MODEL}


def _opencode_environment(_url: str) -> Mapping[str, str]:
    return {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}


def _opencode_files(url: str) -> Mapping[str, str]:
    model = {"name": MODEL, "limit": {"context": CONTEXT, "output": 8192}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "NInfer",
        "options": {"baseURL": f"{url}/v1", "apiKey": "any"},
        "models": {MODEL: model},
    }
    document = {"$schema": "https://opencode.ai/config.json", "provider": {"ninfer": provider}}
    return {"opencode.json": json.dumps(document, indent=2)}


AGENTS = (
    Agent(
        name="claude-code",
        package="@anthropic-ai/claude-code",
        version="2.1.197",
        setup="@anthropic-ai/claude-code/install.cjs",
        command=("claude", "--permission-mode", "acceptEdits", "--allowedTools=Write", "-p"),
        tool="Write",
        parameters={"file_path": "{note}", "content": WORD},
        environment=_claude_environment,
        files=_nothing,
    ),
    Agent(
        name="codex",
        package="@openai/codex",
        version="0.171.0",
        setup=None,
        command=("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        tool="exec_command",
        parameters={"cmd": f"printf {WORD} > {NOTE}"},
        environment=_nothing,
        files=_codex_files,
    ),
    Agent(
        name="qwen-code",
        package="@qwen-code/qwen-code",
        version="0.15.10",
        setup=None,
        command=("qwen", "--auth-type", "openai", "--approval-mode", "yolo", "-p"),
        tool="write_file",
        parameters={"file_path": "{note}", "content": WORD},
        environment=_qwen_environment,
        files=_nothing,
    ),
    Agent(
        name="opencode",
        package="opencode-ai",
        version="1.18.33",
        setup="opencode-ai/postinstall.mjs",
        command=("opencode", "run", "-m", f"ninfer/{MODEL}"),
        tool="write",
        parameters={"filePath": "{note}", "content": WORD},
        environment=_opencode_environment,
        files=_opencode_files,
    ),
)
