"""Imports point up the table of the style guide only. A new package gets its row here first."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STDLIB_ROW = ("ninfer.errors", "ninfer.types", "ninfer.config", "ninfer.step", "ninfer.version")

# prefix of a module -> what of ours it may import (prefixes) and which third parties; longest prefix wins.
ROWS: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "ninfer.errors": ((), frozenset()),
    "ninfer.version": ((), frozenset()),
    "ninfer.types": (STDLIB_ROW, frozenset()),
    "ninfer.step": (STDLIB_ROW, frozenset()),
    "ninfer.config": (STDLIB_ROW, frozenset()),
    "ninfer.speculation": ((*STDLIB_ROW, "ninfer.speculation"), frozenset()),
    "ninfer.scheduler": ((*STDLIB_ROW, "ninfer.scheduler", "ninfer.speculation"), frozenset()),
    "ninfer.text": ((*STDLIB_ROW, "ninfer.text"), frozenset({"tokenizers", "jinja2"})),
    "ninfer.constraints": ((*STDLIB_ROW, "ninfer.constraints", "ninfer.text"), frozenset({"llguidance"})),
    "ninfer.artifact": (
        (*STDLIB_ROW, "ninfer.artifact", "ninfer.text"),
        frozenset({"numpy", "safetensors", "rich", "ml_dtypes"}),
    ),
    "ninfer.ledger": ((*STDLIB_ROW, "ninfer.snapshots.digest"), frozenset()),
    "ninfer.kernels": ((*STDLIB_ROW, "ninfer.kernels"), frozenset({"torch", "triton"})),
    "ninfer.model": (
        (*STDLIB_ROW, "ninfer.model", "ninfer.kernels", "ninfer.artifact"),
        frozenset({"torch", "numpy"}),
    ),
    "ninfer.engine": (
        (*STDLIB_ROW, "ninfer.engine", "ninfer.model", "ninfer.kernels", "ninfer.artifact"),
        frozenset({"torch", "numpy"}),
    ),
    # Stands in for a model and has none: it reads prompts and speaks as text.
    "ninfer.engine.scripted": ((*STDLIB_ROW, "ninfer.text"), frozenset()),
    "ninfer.actors.runtime": ((*STDLIB_ROW, "ninfer.actors.runtime"), frozenset({"anyio"})),
    "ninfer.actors": (
        (
            *STDLIB_ROW,
            "ninfer.actors",
            "ninfer.scheduler",
            "ninfer.speculation",
            "ninfer.text",
            "ninfer.constraints",
            "ninfer.ledger",
            "ninfer.snapshots",
        ),
        frozenset({"anyio", "structlog", "orjson"}),
    ),
    "ninfer.replay": (
        (*STDLIB_ROW, "ninfer.scheduler", "ninfer.explain", "ninfer.execute", "ninfer.artifact.container"),
        frozenset({"orjson"}),
    ),
    "ninfer.execute": (("ninfer",), frozenset()),
    "ninfer.explain": ((*STDLIB_ROW, "ninfer.scheduler", "ninfer.explain", "ninfer.replay"), frozenset()),
    "ninfer.snapshots": ((*STDLIB_ROW, "ninfer.snapshots"), frozenset()),
    "ninfer.options": (STDLIB_ROW, frozenset()),
    "ninfer.parse": ((*STDLIB_ROW, "ninfer.text", "ninfer.api.chat_response"), frozenset()),
    "ninfer.api": (
        (
            *STDLIB_ROW,
            "ninfer.api",
            "ninfer.actors.messages",
            "ninfer.actors.gateway",
            "ninfer.constraints",
            "ninfer.requestlog",
            "ninfer.sensors",
            "ninfer.text",
            "ninfer.tracing",
            "ninfer.ledger",
            "ninfer.snapshots.folder",
            "ninfer.scheduler.statistics",
            "ninfer.scheduler.transitions",
        ),
        frozenset({"anyio", "quart", "werkzeug", "msgspec", "orjson", "structlog"}),
    ),
    "ninfer.requestlog": (
        (
            *STDLIB_ROW,
            "ninfer.requestlog",
            "ninfer.actors.messages",
            "ninfer.scheduler.statistics",
            "ninfer.speculation",
        ),
        frozenset({"orjson", "structlog"}),
    ),
    "ninfer.console": (STDLIB_ROW, frozenset({"structlog"})),
    "ninfer.http2": ((), frozenset({"h2", "hypercorn"})),
    "ninfer.short_way": ((*STDLIB_ROW, "ninfer.api.edge", "ninfer.http2"), frozenset({"h2", "h11", "hypercorn"})),
    "ninfer.listener": ((*STDLIB_ROW, "ninfer.api", "ninfer.http2", "ninfer.short_way"), frozenset({"hypercorn"})),
    "ninfer.keys": (STDLIB_ROW, frozenset()),
    "ninfer.sensors": (STDLIB_ROW, frozenset()),
    "ninfer.tracing": ((*STDLIB_ROW, "ninfer.actors.messages"), frozenset({"opentelemetry"})),
    "ninfer.served": (("ninfer",), frozenset({"torch"})),
    "ninfer.server": (("ninfer",), frozenset({"anyio", "hypercorn", "quart", "structlog"})),
    "ninfer.serve": (("ninfer",), frozenset({"structlog"})),
    "ninfer.bench": (
        ("ninfer",),
        frozenset({"anyio", "h11", "hypercorn", "matplotlib", "orjson", "quart", "torch", "transformers", "fla"}),
    ),
    "ninfer.embedded": (
        ("ninfer",),
        frozenset({"torch", "numpy", "tokenizers", "safetensors", "fla", "triton", "rich", "orjson"}),
    ),
}

# Where waiting is allowed at all.
MAY_AWAIT = ("ninfer.actors", "ninfer.api", "ninfer.http2", "ninfer.short_way", "ninfer.server", "ninfer.bench")


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(_files()):
        relative = path.relative_to(ROOT)
        parts = list(relative.with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        yield ".".join(parts), path


def _files() -> list[Path]:
    # rglob does not follow the two links, so their targets are listed under the names they are imported by.
    own = [path for path in (ROOT / "ninfer").rglob("*.py") if path.parts[len(ROOT.parts) + 1] not in LINKED]
    for name in LINKED:
        own += [ROOT / "ninfer" / name / path.relative_to(ROOT / name) for path in (ROOT / name).rglob("*.py")]
    return own


LINKED = ("actors", "kernels")


def row_of(module: str) -> tuple[tuple[str, ...], frozenset[str]] | None:
    prefixes = [prefix for prefix in ROWS if module == prefix or module.startswith(prefix + ".")]
    return ROWS[max(prefixes, key=len)] if prefixes else None


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            if node.module == "ninfer":
                yield from ((node.lineno, f"ninfer.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


def is_standard(module: str) -> bool:
    import sys

    return module.partition(".")[0] in sys.stdlib_module_names


ALL = dict(modules())


@pytest.mark.parametrize("module", sorted(ALL))
def test_a_module_imports_only_what_stands_above_it(module: str) -> None:
    if module == "ninfer":
        return
    row = row_of(module)
    assert row is not None, f"{module} has no row in the table"
    ours, others = row
    tree = ast.parse(ALL[module].read_text())
    for line, imported in imports(tree):
        if imported.startswith("ninfer"):
            allowed = any(imported == prefix or imported.startswith(prefix + ".") for prefix in ours)
        else:
            assert imported.partition(".")[0] not in LINKED, f"{module}:{line}: say ninfer.{imported}"
            allowed = is_standard(imported) or imported.partition(".")[0] in others
        assert allowed, f"{module}:{line} imports {imported}"
    if not module.startswith(MAY_AWAIT):
        waits = [node for node in ast.walk(tree) if isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.AsyncFor)]
        assert not waits, f"{module}:{waits[0].lineno} waits"


def test_the_links_are_links_and_the_linked_folders_are_not_packages() -> None:
    for name in LINKED:
        assert (ROOT / "ninfer" / name).is_symlink()
        assert not (ROOT / name / "__init__.py").exists()
        missing = [path for path in (ROOT / name).rglob("*.py") if path.parent != ROOT / name
                   and not (path.parent / "__init__.py").exists()]  # fmt: skip
        assert not missing
