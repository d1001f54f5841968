"""Converting a checkpoint: everything is checked first, then each object is streamed into the file (section 12).

Memory stays at a few blocks of rows per worker: tensors are read through memory maps and encoded block by block.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.convert.checkpoint import Checkpoint, bad_source, load_json
from ninfer.artifact.convert.source import SourceModel, read_draft, read_source, resolve_experts
from ninfer.artifact.draft_head import draft_token_ids, public_tokens, read_ranking
from ninfer.artifact.native import TEXT_ROLES, VISION_ROLES, NativePlan, Parent, plan_native
from ninfer.artifact.parameters import DRAFTERS, Components, LogicalParameter, logical_parameters
from ninfer.artifact.placement import DEFAULT_MAX_FILE_BYTES
from ninfer.artifact.quantise import encode_stream
from ninfer.artifact.recipes import recipe_for
from ninfer.artifact.registered import REGISTERED
from ninfer.artifact.writer import ArtifactWriter
from ninfer.errors import ArtifactError
from ninfer.version import VERSION

BASE_COMPONENTS = ("text", "vision", "mtp")
# Beyond this the reading of the checkpoint is the limit, not the encoding.
MAX_WORKERS = 16

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Conversion:
    """What to convert, and into what.

    model           checkpoint directory
    recipe          name of a recipe (`ninfer.artifact.recipes`)
    out             entry file to write
    components      component names, or None for all that the base checkpoint has
    drafts          directories of the drafters' own checkpoints by component
    proposal_rows   rows of the draft head, or None for no draft head
    ranking         counts file for the draft head; None with `proposal_rows` means all counts zero
    resources       files that replace those of the checkpoint directory, by role
    name            public model name; None takes the registered one, else the directory's name
    """

    model: Path
    recipe: str
    out: Path
    components: tuple[str, ...] | None = None
    drafts: Mapping[str, Path] = field(default_factory=dict)
    proposal_rows: int | None = None
    ranking: Path | None = None
    resources: Mapping[str, Path] = field(default_factory=dict)
    name: str | None = None
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A conversion after all checks: nothing but reading, encoding and writing is left."""

    checkpoints: dict[str, Checkpoint]
    resources: dict[str, bytes]
    plan: NativePlan
    token_ids: NDArray[np.int32] | None
    head_tensor: str


def convert(conversion: Conversion, progress: Progress = lambda done, total: None) -> dict[str, Any]:
    """Write the artifact; returns the conversion report.

    progress   called from worker threads with bytes written and bytes in all
    Raises ArtifactError BAD_SOURCE before anything is written, BAD_SOURCE_VALUE while writing (nothing is left
    behind), OUTPUT_EXISTS, LIMIT_TOO_SMALL, UNSUPPORTED.
    """
    prepared = _prepare(conversion)
    plan = dataclasses.replace(
        prepared.plan.directory, metadata={"name": _name(conversion)}, provenance=_provenance(conversion)
    )
    with ArtifactWriter(conversion.out, plan, max_file_bytes=conversion.max_file_bytes) as writer:
        _write_all(writer, prepared, progress)
        writer.publish()
        return writer.summary()


def _prepare(conversion: Conversion) -> _Prepared:
    base = Checkpoint(conversion.model)
    source = read_source(conversion.model, base)
    components = _components(conversion, source)
    try:
        recipe = recipe_for(conversion.recipe, moe=source.text.moe is not None)
    except ValueError as error:
        raise bad_source(conversion.model, str(error)) from None
    if recipe.imported:
        raise ArtifactError(
            "UNSUPPORTED",
            str(conversion.model),
            f"recipe {recipe.name} imports a quantised checkpoint, not implemented",
        )
    registered = REGISTERED.get(conversion.recipe)
    if registered is not None and (
        registered.components.text != source.text or components.vision not in (None, registered.components.vision)
    ):
        detail = f"dimensions are not those of {registered.name}; use recipe generic_int"
        raise bad_source(conversion.model / "config.json", detail)

    checkpoints = {"base": base, **{name: Checkpoint(path) for name, path in conversion.drafts.items()}}
    parameters = [resolve_experts(p, base) for p in logical_parameters(components, source.text_prefix)]
    for parameter in parameters:
        if parameter.source is not None:
            checkpoints[parameter.source.checkpoint].check(parameter)
    resources = _resources(conversion, components)
    by_name = {p.name: p for p in parameters}
    head = by_name["text/output_head"]
    assert head.source is not None
    token_ids = _token_ids(conversion, components, resources)

    def source_format(parameter: LogicalParameter) -> str:
        # The draft head is made of rows of the output head.
        origin = parameter.source or head.source
        assert origin is not None
        # Every half-precision value is exact in binary32, and not in bfloat16.
        return "bf16" if checkpoints[origin.checkpoint].stored(origin.tensor).dtype == "BF16" else "fp32"

    sizes = {role: len(content) for role, content in resources.items()}
    plan = plan_native(components, parameters, recipe, sizes, source_format)
    return _Prepared(checkpoints, resources, plan, token_ids, head.source.tensor)


def _components(conversion: Conversion, source: SourceModel) -> Components:
    base = {"text": source.text, "vision": source.vision, "mtp": source.mtp}
    wanted = conversion.components
    if wanted is None:
        wanted = (*(name for name in BASE_COMPONENTS if base[name] is not None), *conversion.drafts)
    for name in wanted:
        if name in BASE_COMPONENTS and base[name] is None:
            raise bad_source(conversion.model, f"the checkpoint has no component {name}")
        if name in DRAFTERS and name not in conversion.drafts:
            raise bad_source(conversion.model, f"component {name} needs --source {name}=DIR")
    return Components(
        text=source.text,
        mtp=source.mtp if "mtp" in wanted else None,
        vision=source.vision if "vision" in wanted else None,
        drafts={n: read_draft(conversion.drafts[n], n, source.text) for n in DRAFTERS if n in wanted},
        proposal_rows=conversion.proposal_rows,
    )


def _resources(conversion: Conversion, components: Components) -> dict[str, bytes]:
    roles = (*TEXT_ROLES, *(VISION_ROLES if components.vision else ()))
    out: dict[str, bytes] = {}
    for role in roles:
        path = conversion.resources.get(role, conversion.model / role)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise bad_source(path, f"{error.strerror}; name another with --resource {role}=FILE") from None
        if not content:
            raise bad_source(path, "is empty")
        if role.endswith(".json"):
            load_json(path)
        out[role] = content
    if unused := sorted(set(conversion.resources) - set(roles)):
        raise bad_source(conversion.model, f"resource {', '.join(unused)} belongs to no component that is written")
    if components.vision is not None:
        vision = components.vision
        patch = {"patch_size": vision.patch_size, "temporal_patch_size": vision.temporal_patch_size}
        for role in VISION_ROLES:
            path = conversion.resources.get(role, conversion.model / role)
            config = load_json(path)
            for key, value in {**patch, "merge_size": vision.spatial_merge_size}.items():
                if config.get(key, value) != value:
                    raise bad_source(path, f"{key} is {config[key]!r}, the vision tower has {value}")
    return out


def _token_ids(
    conversion: Conversion, components: Components, resources: Mapping[str, bytes]
) -> NDArray[np.int32] | None:
    if components.proposal_rows is None:
        return None
    vocabulary = components.text.vocab_size
    path = str(conversion.model)
    tokens = public_tokens(resources["tokenizer.json"], resources["tokenizer_config.json"], path)
    if tokens.count > vocabulary:
        raise bad_source(conversion.model, f"{tokens.count} token ids for {vocabulary} vocabulary rows")
    if conversion.ranking is None:
        counts = np.zeros(vocabulary, np.int64)
    else:
        counts = read_ranking(conversion.ranking, vocabulary)
    return draft_token_ids(counts, tokens, components.proposal_rows, path)


def _write_all(writer: ArtifactWriter, prepared: _Prepared, progress: Progress) -> None:
    for role, id in prepared.plan.resources.items():
        writer.write(id, 0, prepared.resources[role])
    total = writer.directory.payload_bytes
    done = 0
    lock = Lock()

    def write(parent: Parent) -> None:
        nonlocal done
        try:
            for offset, data in encode_stream(_blocks(parent, prepared), parent.format, parent.shape):
                with lock:
                    writer.write(parent.id, offset, data)
                    done += data.nbytes
                    progress(done, total)
        except ArtifactError as error:
            # The encoder knows neither file nor parameter.
            if error.path:
                raise
            names = ", ".join(member.name for member in parent.members[:4])
            raise ArtifactError(
                error.code, str(prepared.checkpoints["base"].path), f"{names}: {error.detail}"
            ) from None

    workers = min(MAX_WORKERS, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers, thread_name_prefix="convert") as pool:
        futures = [pool.submit(write, parent) for parent in prepared.plan.parents]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _blocks(parent: Parent, prepared: _Prepared) -> Iterator[NDArray[Any]]:
    for member in parent.members:
        if member.source is not None:
            yield from prepared.checkpoints[member.source.checkpoint].blocks(member)
        else:
            assert prepared.token_ids is not None
            if member.role == "token_ids":
                yield prepared.token_ids
            else:
                yield from prepared.checkpoints["base"].rows(prepared.head_tensor, prepared.token_ids)


def _name(conversion: Conversion) -> str:
    if conversion.name is not None:
        return conversion.name
    registered = REGISTERED.get(conversion.recipe)
    return conversion.model.resolve().name if registered is None else registered.name


def _provenance(conversion: Conversion) -> dict[str, Any]:
    sources = {"base": conversion.model, **conversion.drafts}
    return {
        "converter": f"ninfer {VERSION}",
        "recipe": conversion.recipe,
        "sources": {name: {"path": str(path)} for name, path in sources.items()},
    }
