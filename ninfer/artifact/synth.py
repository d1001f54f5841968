"""``ninfer-artifact synth``: a full-size artifact of a registered model with random weights (design, section 5).

For memory, speed and equality tests at true shapes, on the machine that needs it. Equal input gives equal bytes.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.config import DraftConfig
from ninfer.artifact.convert.checkpoint import bad_source
from ninfer.artifact.draft_head import draft_token_ids, public_tokens
from ninfer.artifact.frontend import small_frontend
from ninfer.artifact.native import TEXT_ROLES, VISION_ROLES, plan_native
from ninfer.artifact.parameters import DRAFTERS, INT32, Components, logical_parameters
from ninfer.artifact.placement import DEFAULT_MAX_FILE_BYTES
from ninfer.artifact.progress import progress_bar
from ninfer.artifact.randomise import random_block, row_ranges
from ninfer.artifact.recipes import recipe_for
from ninfer.artifact.registered import PUBLIC_TOKENS, REGISTERED
from ninfer.artifact.writer import ArtifactWriter

# A serialised divisor of a usual size: activations up to about 21 fill the range 6 * 448 / d.
ACTIVATION_DIVISOR = 128.0
OPTIONAL_COMPONENTS = ("vision", "mtp", *DRAFTERS, "proposal")

Progress = Callable[[int, int], None]


def synthesise(
    out: Path,
    components: Components,
    recipe_name: str,
    resources: Mapping[str, bytes],
    *,
    seed: int,
    name: str,
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
    threads: int | None = None,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Write a random artifact of `components`; returns the report.

    resources   frontend files by role; a draft head needs the tokenizer's
    seed        0 or more; with the other arguments it determines every byte, whatever the number of threads
    progress    called from worker threads with bytes written and bytes in all
    Raises ArtifactError OUTPUT_EXISTS, LIMIT_TOO_SMALL, or BAD_SOURCE for tokenizer files that do not fit.
    """
    recipe = recipe_for(recipe_name, moe=components.text.moe is not None)
    sizes = {role: len(content) for role, content in resources.items()}
    plan = plan_native(components, logical_parameters(components), recipe, sizes)
    directory = dataclasses.replace(
        plan.directory, metadata={"name": name}, provenance={"synthesised": {"recipe": recipe_name, "seed": seed}}
    )
    token_ids = _token_ids(components, resources)
    identity = _identity(recipe_name, seed, components, resources)
    with ArtifactWriter(out, directory, artifact_id=identity, max_file_bytes=max_file_bytes) as writer:
        for role, id in plan.resources.items():
            writer.write(id, 0, resources[role])
        for id in plan.divisors:
            writer.write(id, 0, np.array([ACTIVATION_DIVISOR], "<f4"))
        total, done = writer.directory.payload_bytes, 0
        lock = Lock()

        def write(index: int, block: int, rows: tuple[int, int]) -> None:
            nonlocal done
            parent = plan.parents[index]
            tied = components.text.tie_word_embeddings
            for offset, data in random_block(parent, index, seed, block, rows, tied=tied):
                with lock:
                    writer.write(parent.id, offset, data)
                    done += data.nbytes
                    progress(done, total)

        # The writer is one thread's at a time, so everything small is written before the workers start.
        blocks = []
        for index, parent in enumerate(plan.parents):
            if parent.members[0].kind == INT32:
                writer.write(parent.id, 0, token_ids)
            else:
                blocks += [(index, block, rows) for block, rows in enumerate(row_ranges(parent))]
        with ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="synth") as pool:
            futures = [pool.submit(write, *block) for block in blocks]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        writer.publish()
        return writer.summary()


def _token_ids(components: Components, resources: Mapping[str, bytes]) -> NDArray[np.int32]:
    """Rows of the draft head as for a ranking of zero counts; none without a draft head."""
    if components.proposal_rows is None:
        return np.empty(0, np.int32)
    tokens = public_tokens(resources["tokenizer.json"], resources["tokenizer_config.json"], "tokenizer files")
    counts = np.zeros(tokens.count, np.int64)
    return draft_token_ids(counts, tokens, components.proposal_rows, "tokenizer files")


def _identity(recipe: str, seed: int, components: Components, resources: Mapping[str, bytes]) -> bytes:
    """16 bytes that differ whenever the artifact does."""
    digest = hashlib.sha256(repr((recipe, seed, components)).encode())
    for role, content in sorted(resources.items()):
        digest.update(f"{role}:{len(content)}:".encode() + content)
    return digest.digest()[:16]


def registered_components(recipe: str, names: tuple[str, ...] | None = None, layers: int | None = None) -> Components:
    """Components of a registered model.

    names    optional components to keep; None keeps all that the cut allows
    layers   keep only this many text layers, or None for all
    Raises ValueError for a component that the model, or a model cut this short, does not have.
    """
    whole = REGISTERED[recipe].components
    text = whole.text
    if layers is not None:
        if not 1 <= layers <= text.num_layers:
            raise ValueError(f"{recipe} has {text.num_layers} layers, not {layers}")
        text = dataclasses.replace(text, layer_types=text.layer_types[:layers])

    def fits(draft: DraftConfig) -> bool:
        return max(draft.target_layer_ids) < text.num_layers

    drafts = {n: draft for n, draft in whole.drafts.items() if (fits(draft) if names is None else n in names)}
    for name in names or ():
        if name in DRAFTERS and (name not in drafts or not fits(drafts[name])):
            raise ValueError(f"{recipe} with {text.num_layers} layers has no {name}")

    def kept(name: str) -> bool:
        return names is None or name in names

    return Components(
        text=text,
        mtp=whole.mtp if kept("mtp") else None,
        vision=whole.vision if kept("vision") else None,
        drafts=drafts,
        proposal_rows=whole.proposal_rows if kept("proposal") else None,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("--model", choices=tuple(REGISTERED), required=True, help="recipe of a registered model")
    parser.add_argument("--seed", type=_natural, default=0, help="default: %(default)s")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="artifact to write")
    parser.add_argument("--layers", type=int, metavar="N", help="keep only the first N text layers")
    parser.add_argument(
        "--components",
        type=_optional,
        metavar="LIST",
        help=f"comma-separated: text and any of {', '.join(OPTIONAL_COMPONENTS)}; default: all of the model",
    )
    parser.add_argument(
        "--frontend", type=Path, metavar="DIR", help="take tokenizer, template and generation config from here"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="default: one per core")
    parser.add_argument("--max-file-bytes", type=int, default=DEFAULT_MAX_FILE_BYTES, metavar="N")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Synthesise; returns 0. Faults are raised as ArtifactError, of the command line as SystemExit(2)."""
    try:
        components = registered_components(args.model, args.components, args.layers)
    except ValueError as error:
        args.usage_error(str(error))
    vision = components.vision is not None
    if args.frontend is None:
        resources = small_frontend(public_tokens=PUBLIC_TOKENS, vision=vision)
    else:
        resources = _read_frontend(args.frontend, vision=vision)
    with progress_bar("synthesising") as progress:
        report = synthesise(
            args.out,
            components,
            args.model,
            resources,
            seed=args.seed,
            name=REGISTERED[args.model].name,
            max_file_bytes=args.max_file_bytes,
            threads=args.threads,
            progress=progress,
        )
    size = sum(file["bytes"] for file in report["files"])
    print(f"{args.out}: {size:,} bytes, {report['objects']} objects, artifact {report['artifact_id']}")
    return 0


def _read_frontend(directory: Path, *, vision: bool) -> dict[str, bytes]:
    resources: dict[str, bytes] = {}
    for role in (*TEXT_ROLES, *(VISION_ROLES if vision else ())):
        path = directory / role
        try:
            resources[role] = path.read_bytes()
        except OSError as error:
            raise bad_source(path, f"cannot be read: {error.strerror}") from None
        if not resources[role]:
            raise bad_source(path, "is empty")
    return resources


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative: {text}")
    return value


def _optional(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if "text" not in names or not set(names) <= {"text", *OPTIONAL_COMPONENTS}:
        raise argparse.ArgumentTypeError(f"must list text and any of {', '.join(OPTIONAL_COMPONENTS)}: {text!r}")
    return names
