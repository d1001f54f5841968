"""From an open artifact to the parameters of the selected components (artifact spec, sections 4.6 to 4.8, 9.1, 15).

Binding checks everything the executor relies on: configs, presence and shape of every parameter, and the auxiliaries
of their uses. Values are decoded when they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.config import (
    MtpConfig,
    TextConfig,
    VisionConfig,
    parse_draft_config,
    parse_mtp_config,
    parse_text_config,
    parse_vision_config,
)
from ninfer.artifact.container import Artifact
from ninfer.artifact.directory import Binding, Part, Use, WholeObject
from ninfer.artifact.formats import find_format, row_split
from ninfer.artifact.inspection import labels
from ninfer.artifact.layouts import GroupedRows, as_bytes, grouped_rows
from ninfer.artifact.native import DIVISOR_ROLE
from ninfer.artifact.parameters import DRAFTERS, INT32, Components, LogicalParameter, iterate_parameters
from ninfer.errors import ArtifactError

SELECTABLE = ("text", "vision", "mtp", *DRAFTERS, "proposal")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A bound parameter: its logical shape, and the element ranges of stored tensors that make it up, in order."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]


class BoundArtifact:
    """The selected components of an artifact; valid while the artifact is open."""

    def __init__(self, artifact: Artifact, components: Components, parameters: Mapping[str, Parameter]) -> None:
        self.artifact = artifact
        self.components = components
        self._parameters = parameters

    @property
    def text(self) -> TextConfig:
        return self.components.text

    @property
    def mtp(self) -> MtpConfig | None:
        return self.components.mtp

    @property
    def proposal_rows(self) -> int | None:
        return self.components.proposal_rows

    @property
    def vision(self) -> VisionConfig | None:
        return self.components.vision

    @property
    def name(self) -> str | None:
        """Public model name, if the artifact states one."""
        metadata = self.artifact.directory.metadata
        return None if metadata is None else metadata.get("name")

    @property
    def target(self) -> str:
        """Label of the model for logs (9.1); selects nothing."""
        return labels(self.artifact.directory)[0]

    @property
    def weights_id(self) -> str:
        """Label of the representation for logs (9.1); selects nothing."""
        return labels(self.artifact.directory)[1]

    def parameters(self) -> Sequence[Parameter]:
        """Every bound parameter in canonical order."""
        return tuple(self._parameters.values())

    def parameter(self, name: str) -> Parameter:
        """Parameter `name`; PARAMETER_MISSING if no selected component has it."""
        try:
            return self._parameters[name]
        except KeyError:
            raise ArtifactError(
                "PARAMETER_MISSING", self.artifact.path, f"parameter {name!r} belongs to no selected component"
            ) from None

    def values(self, name: str, rows: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """Decoded float32 values of the logical shape, the first axis cut to `rows` = [begin, end) if given."""
        parameter = self.parameter(name)
        if parameter.name == "proposal/token_ids":
            raise ValueError("proposal/token_ids holds integers; use token_ids()")
        return self._decode(parameter, rows)

    def format_of(self, name: str) -> str:
        """The format of a parameter; UNSUPPORTED if its parts differ."""
        formats = {self.artifact.tensor_object(part.object).format for part in self.parameter(name).parts}
        if len(formats) > 1:
            raise ArtifactError(
                "UNSUPPORTED", self.artifact.path, f"parameter {name!r} mixes formats {sorted(formats)}"
            )
        return formats.pop()

    def grouped_rows(self, name: str, rows: tuple[int, int]) -> Iterator[GroupedRows]:
        """Rows [begin, end) of a grouped matrix as they are stored, in order, without a copy.

        UNSUPPORTED if the parts of the parameter begin or end inside a row.
        """
        parameter = self.parameter(name)
        width = parameter.shape[1]
        for part in _pieces(parameter, rows[0] * width, rows[1] * width):
            stored = self.artifact.tensor_object(part.object)
            if part.begin % width or part.end % width or stored.shape[1:] != (width,):
                raise ArtifactError("UNSUPPORTED", self.artifact.path, f"parameter {name!r} is cut inside a row")
            format = find_format(stored.format)
            data = as_bytes(self.artifact.object_bytes(part.object), row_split(format, stored.shape).size)
            yield grouped_rows(data, format, stored.shape, (part.begin // width, part.end // width))

    def token_ids(self) -> NDArray[np.int32]:
        """Token ids [rows] of the draft head; BAD_RANGE unless they are distinct rows of the vocabulary."""
        ids: NDArray[np.int32] = self._decode(self.parameter("proposal/token_ids"), None)
        if ids.min() < 0 or ids.max() >= self.text.vocab_size or len(np.unique(ids)) != len(ids):
            raise ArtifactError(
                "BAD_RANGE",
                self.artifact.path,
                f"proposal/token_ids must be distinct and in [0, {self.text.vocab_size})",
            )
        return ids

    def resource(self, component: str, role: str) -> bytes:
        """Bytes of a component's resource."""
        return self.artifact.resource(component, role)

    def optional_resource(self, component: str, role: str) -> bytes | None:
        """Bytes of a component's resource, or None if it has none of that role."""
        if role not in self.artifact.directory.components[component].resources:
            return None
        return self.resource(component, role)

    def _decode(self, parameter: Parameter, rows: tuple[int, int] | None) -> NDArray[Any]:
        width = math.prod(parameter.shape[1:])
        begin, end = (0, math.prod(parameter.shape)) if rows is None else (rows[0] * width, rows[1] * width)
        if not 0 <= begin < end <= math.prod(parameter.shape):
            raise ValueError(f"rows {rows} of {parameter.name} with shape {parameter.shape}")
        pieces = [self._elements(part.object, part.begin, part.end) for part in _pieces(parameter, begin, end)]
        flat = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        shape = parameter.shape if rows is None else (rows[1] - rows[0], *parameter.shape[1:])
        return flat.reshape(shape)

    def _elements(self, object: str, begin: int, end: int) -> NDArray[Any]:
        """Flat elements [begin, end) of a stored tensor; only the rows they lie in are decoded."""
        shape = self.artifact.tensor_object(object).shape
        if not shape:
            return self.artifact.tensor(object).reshape(-1)
        width = math.prod(shape[1:])
        rows = (begin // width, -(-end // width))
        flat = self.artifact.tensor(object, rows).reshape(-1)
        return flat[begin - rows[0] * width : end - rows[0] * width]


def _pieces(parameter: Parameter, begin: int, end: int) -> Iterator[Part]:
    """Where the flat elements [begin, end) of a parameter are stored, in order."""
    position = 0
    for part in parameter.parts:
        first = max(begin - position, 0) + part.begin
        last = min(end - position, part.end - part.begin) + part.begin
        if first < last:
            yield Part(part.object, first, last)
        position += part.end - part.begin


def bind(artifact: Artifact, components: Sequence[str] = ("text",)) -> BoundArtifact:
    """Bind the selected components (names of SELECTABLE; text always is).

    Raises ArtifactError BAD_CONFIG, COMPONENT_ABSENT, PARAMETER_MISSING, SHAPE_MISMATCH, BAD_AUXILIARY or UNSUPPORTED.
    """
    selected = set(components)
    if unknown := sorted(selected - set(SELECTABLE)):
        raise ValueError(f"unknown component {', '.join(unknown)}; there are {', '.join(SELECTABLE)}")
    known = _configs(artifact, selected)
    bindings = artifact.directory.bindings
    parameters: dict[str, Parameter] = {}
    for wanted in iterate_parameters(known):  # the first that is missing ends it, whatever the config asks for
        binding = bindings.get(wanted.name)
        if binding is None:
            raise ArtifactError("PARAMETER_MISSING", artifact.path, f"parameter {wanted.name!r} has no binding")
        parameters[wanted.name] = _bound(artifact, wanted, binding)
    for use in artifact.directory.uses:
        if use.parameter in parameters:
            _check_auxiliaries(artifact, use)
    return BoundArtifact(artifact, known, parameters)


def _configs(artifact: Artifact, selected: set[str]) -> Components:
    present = artifact.directory.components
    for name in SELECTABLE:
        absent = present["text"].proposal is None if name == "proposal" else name not in present
        if name in selected and absent:
            raise ArtifactError("COMPONENT_ABSENT", artifact.path, f"component {name!r} is not in this artifact")
    path = artifact.path
    with_mtp = "mtp" in selected
    text = parse_text_config(present["text"].config, path, with_mtp=with_mtp)
    proposal = present["text"].proposal
    rows = None
    # A proposal over the full vocabulary is the output head itself and has no parameters of its own.
    if "proposal" in selected and proposal is not None and proposal.rows is not None:
        rows = proposal.rows
        if rows > text.vocab_size:
            detail = f"proposal of {rows} rows for a vocabulary of {text.vocab_size}"
            raise ArtifactError("BAD_CONFIG", path, detail)
    return Components(
        text=text,
        mtp=parse_mtp_config(present["mtp"].config, path, text) if with_mtp else None,
        vision=parse_vision_config(present["vision"].config, path, text) if "vision" in selected else None,
        drafts={n: parse_draft_config(present[n].config, path, n, text) for n in DRAFTERS if n in selected},
        proposal_rows=rows,
    )


def _bound(artifact: Artifact, wanted: LogicalParameter, binding: Binding) -> Parameter:
    if isinstance(binding, WholeObject):
        stored = artifact.tensor_object(binding.object)
        if stored.shape != wanted.shape:
            raise ArtifactError(
                "SHAPE_MISMATCH",
                artifact.path,
                f"parameter {wanted.name!r}: object {stored.id!r} has shape {list(stored.shape)}, "
                f"expected {list(wanted.shape)}",
            )
        parts: tuple[Part, ...] = (Part(stored.id, 0, wanted.elements),)
    else:
        parts = binding.parts
        total = sum(part.end - part.begin for part in parts)
        if total != wanted.elements:
            raise ArtifactError(
                "SHAPE_MISMATCH",
                artifact.path,
                f"parameter {wanted.name!r}: parts have {total} elements, shape {list(wanted.shape)} "
                f"needs {wanted.elements}",
            )
    for part in parts:
        format = artifact.tensor_object(part.object).format
        if (format == "int32") != (wanted.kind == INT32):
            raise ArtifactError(
                "UNSUPPORTED", artifact.path, f"parameter {wanted.name!r}: object {part.object!r} has format {format}"
            )
    return Parameter(wanted.name, wanted.shape, parts)


def _check_auxiliaries(artifact: Artifact, use: Use) -> None:
    where = f"use of {use.parameter!r} with input {use.input!r}"
    for role, binding in use.auxiliaries.items():
        if role == "hadamard_signs":
            raise ArtifactError("UNSUPPORTED", artifact.path, f"{where}: rotated inputs are not implemented")
        if role != DIVISOR_ROLE:
            raise ArtifactError("BAD_AUXILIARY", artifact.path, f"{where}: unknown auxiliary role {role!r}")
        objects = [binding.object] if isinstance(binding, WholeObject) else [part.object for part in binding.parts]
        if len(objects) != 1:
            raise ArtifactError("BAD_AUXILIARY", artifact.path, f"{where}: divisor of {len(objects)} parts")
        stored = artifact.tensor_object(objects[0])
        if stored.format != "fp32" or stored.shape != ():
            raise ArtifactError(
                "BAD_AUXILIARY",
                artifact.path,
                f"{where}: divisor {stored.id!r} is {stored.format} {list(stored.shape)}, expected fp32 []",
            )
        value = float(artifact.tensor(stored.id))
        if not (0 < value < math.inf):
            raise ArtifactError("BAD_AUXILIARY", artifact.path, f"{where}: divisor {stored.id!r} is {value}")
