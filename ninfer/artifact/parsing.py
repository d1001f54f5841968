"""Reading the root object of a version 3 file with every check of opening (artifact spec, sections 4.2 to 4.8 and 15).

Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ninfer.artifact.directory import (
    Binding,
    Component,
    Directory,
    FileRecord,
    Part,
    Parts,
    Proposal,
    ResourceObject,
    StoredObject,
    TensorObject,
    Use,
    WholeObject,
)
from ninfer.artifact.jsontext import JsonReader

ACTIVATION_POLICIES = ("A16Only", "AllowA8", "AllowA4")


def parse_directory(text: bytes, path: str) -> Directory:
    """The directory in `text`; `path` is the entry file, whose own name no continuation may have.

    Raises ArtifactError with the codes of section 15 that belong to opening.
    """
    reader = _DirectoryReader(path)
    root = reader.members(
        reader.parse(text),
        "root",
        ("components", "objects", "bindings", "uses", "files"),
        ("metadata", "provenance"),
    )
    files = reader.files(root["files"])
    objects = reader.objects(root["objects"], sum(record.payload_bytes for record in files))
    by_id = {stored.id: stored for stored in objects}
    components = reader.components(root["components"], by_id)
    bindings = {
        reader.identifier(name, "parameter name"): reader.binding(value, f"binding {name!r}", by_id)
        for name, value in reader.object(root["bindings"], "bindings").items()
    }
    uses = reader.uses(root["uses"], bindings, by_id)
    metadata = reader.open_object(root, "metadata")
    if metadata is not None and "name" in metadata:
        name = metadata["name"]
        if not isinstance(name, str) or not name or "\0" in name:
            reader.fail("BAD_METADATA", f"metadata.name must be a nonempty string without U+0000, found {name!r}")
    return Directory(components, objects, bindings, uses, files, metadata, reader.open_object(root, "provenance"))


class _DirectoryReader(JsonReader):
    def open_object(self, root: dict[str, Any], name: str) -> dict[str, Any] | None:
        if name not in root:
            return None
        if not isinstance(root[name], dict):
            self.fail("BAD_METADATA", f"{name} must be an object")
        value: dict[str, Any] = root[name]
        return value

    def files(self, value: Any) -> tuple[FileRecord, ...]:
        records = self.array(value, "files")
        if not records:
            self.fail("BAD_FILES", "files is empty")
        entry_name = self.path.replace("\\", "/").rpartition("/")[2]
        names = {entry_name}
        files = []
        for index, item in enumerate(records):
            record = self.members(item, f"files[{index}]", ("path", "payload_bytes"))
            name = record["path"]
            if index == 0:
                if name is not None:
                    self.fail("BAD_FILES", f"files[0].path must be null, found {name!r}")
            else:
                self.sibling(name, index, names)
            files.append(FileRecord(name, self.integer(record["payload_bytes"], f"files[{index}].payload_bytes")))
        self.integer(sum(record.payload_bytes for record in files), "sum of payload_bytes")
        return tuple(files)

    def sibling(self, name: Any, index: int, names: set[str]) -> None:
        if not isinstance(name, str) or name in ("", ".", "..") or any(sign in name for sign in "\0/\\"):
            self.fail("BAD_FILES", f"files[{index}].path must be a plain file name, found {name!r}")
        self.identifier(name, f"files[{index}].path")
        if name in names:
            self.fail("BAD_FILES", f"files[{index}].path {name!r} is already taken")
        names.add(name)

    def objects(self, value: Any, payload_bytes: int) -> tuple[StoredObject, ...]:
        if not isinstance(value, list) or not value:
            self.fail("EMPTY_OBJECTS", "objects must be a nonempty array")
        cursor = 0
        seen: set[str] = set()
        objects = []
        for index, item in enumerate(value):
            stored = self.stored_object(item, f"objects[{index}]")
            if stored.id in seen:
                self.fail("DUPLICATE_ID", f"object {stored.id!r} is listed twice")
            seen.add(stored.id)
            if stored.offset < cursor:
                self.fail("OVERLAP", f"object {stored.id!r}: offset {stored.offset} is before {cursor}")
            cursor = stored.offset + stored.bytes
            if cursor > payload_bytes:
                self.fail(
                    "OUT_OF_RANGE", f"object {stored.id!r}: ends at {cursor}, the payload has {payload_bytes} bytes"
                )
            objects.append(stored)
        return tuple(objects)

    def stored_object(self, item: Any, where: str) -> StoredObject:
        record = self.object(item, where)
        kind = record.get("kind")
        if "kind" in record and kind not in ("tensor", "resource"):
            self.fail("BAD_KIND", f"{where}.kind must be tensor or resource, found {kind!r}")
        if kind == "resource":
            self.members(record, where, ("id", "kind", "encoding", "offset", "bytes"))
        else:
            self.members(record, where, ("id", "kind", "shape", "format", "layout", "offset", "bytes"))
        id = self.identifier(record["id"], f"{where}.id")
        where = f"object {id!r}"
        if kind == "resource":
            encoding = self.identifier(record["encoding"], f"{where}: encoding")
            return ResourceObject(id, encoding, *self.place(record, where))
        shape = self.shape(record["shape"], f"{where}: shape")
        format = self.identifier(record["format"], f"{where}: format")
        layout = self.identifier(record["layout"], f"{where}: layout")
        return TensorObject(id, shape, format, layout, *self.place(record, where))

    def place(self, record: dict[str, Any], where: str) -> tuple[int, int]:
        return self.integer(record["offset"], f"{where}: offset"), self.integer(record["bytes"], f"{where}: bytes", 1)

    def components(self, value: Any, objects: Mapping[str, StoredObject]) -> dict[str, Component]:
        records = self.object(value, "components")
        if "text" not in records:
            self.fail("BAD_COMPONENT", f"components has no text, found {sorted(records)}")
        components = {}
        for name, item in records.items():
            self.identifier(name, "component name")
            where = f"component {name!r}"
            record = self.members(item, where, ("config",), ("target", "resources", "proposal"))
            config = self.object(record["config"], f"{where}: config")
            target = None
            if "target" in record:
                target = self.identifier(record["target"], f"{where}: target")
                if target not in records:
                    self.fail("BAD_COMPONENT", f"{where}: target {target!r} does not exist")
            resources = self.roles(record.get("resources", {}), where, objects)
            proposal = None
            if "proposal" in record:
                if name != "text":
                    self.fail("BAD_COMPONENT", f"{where}: only text may have a proposal")
                proposal = self.proposal(record["proposal"])
            components[name] = Component(config, target, resources, proposal)
        return components

    def roles(self, value: Any, where: str, objects: Mapping[str, StoredObject]) -> dict[str, str]:
        resources = {}
        for role, id in self.object(value, f"{where}: resources").items():
            self.identifier(role, f"{where}: resource role")
            resources[role] = self.identifier(id, f"{where}: resource {role!r}")
            if not isinstance(objects.get(id), ResourceObject):
                self.fail("BAD_COMPONENT", f"{where}: resource {role!r} names {id!r}, which is no resource object")
        return resources

    def proposal(self, value: Any) -> Proposal:
        record = self.members(value, "proposal", ("domain",), ("rows",))
        domain = self.string(record["domain"], "proposal: domain")
        if domain == "full":
            self.members(record, "proposal", ("domain",))
            return Proposal("full", None)
        if domain != "indexed":
            self.fail("BAD_COMPONENT", f"proposal: domain must be indexed or full, found {domain!r}")
        self.members(record, "proposal", ("domain", "rows"))
        return Proposal("indexed", self.integer(record["rows"], "proposal: rows", 1))

    def binding(self, value: Any, where: str, objects: Mapping[str, StoredObject]) -> Binding:
        record = self.members(value, where, (), ("object", "parts"))
        if len(record) != 1:
            self.fail("BAD_MEMBERS", f"{where}: exactly one of object and parts is needed, found {sorted(record)}")
        if "object" in record:
            return WholeObject(self.tensor(record["object"], where, objects).id)
        items = self.array(record["parts"], f"{where}: parts")
        if not items:
            self.fail("BAD_BINDING", f"{where}: parts is empty")
        parts = []
        for item in items:
            part = self.members(item, f"{where}: part", ("object", "range"))
            tensor = self.tensor(part["object"], where, objects)
            bounds = self.array(part["range"], f"{where}: range")
            if len(bounds) != 2:
                self.fail("BAD_BINDING", f"{where}: range must be [begin, end], found {len(bounds)} values")
            begin, end = (self.integer(bound, f"{where}: range") for bound in bounds)
            elements = math.prod(tensor.shape)
            if not begin < end <= elements:
                self.fail(
                    "BAD_BINDING", f"{where}: range [{begin}, {end}) of object {tensor.id!r} with {elements} elements"
                )
            parts.append(Part(tensor.id, begin, end))
        return Parts(tuple(parts))

    def tensor(self, value: Any, where: str, objects: Mapping[str, StoredObject]) -> TensorObject:
        id = self.identifier(value, f"{where}: object")
        stored = objects.get(id)
        if not isinstance(stored, TensorObject):
            found = "does not exist" if stored is None else "is a resource"
            self.fail("BAD_BINDING", f"{where}: object {id!r} {found}")
        return stored

    def uses(self, value: Any, bindings: Mapping[str, Binding], objects: Mapping[str, StoredObject]) -> tuple[Use, ...]:
        uses = []
        seen: set[tuple[str, str]] = set()
        for index, item in enumerate(self.array(value, "uses")):
            where = f"uses[{index}]"
            record = self.members(item, where, ("parameter", "input"), ("activation_policy", "auxiliaries"))
            parameter = self.identifier(record["parameter"], f"{where}: parameter")
            input = self.identifier(record["input"], f"{where}: input")
            if parameter not in bindings:
                self.fail("BAD_USE", f"{where}: parameter {parameter!r} has no binding")
            if (parameter, input) in seen:
                self.fail("BAD_USE", f"{where}: parameter {parameter!r} with input {input!r} is listed twice")
            seen.add((parameter, input))
            policy = None
            if "activation_policy" in record:
                policy = self.string(record["activation_policy"], f"{where}: activation_policy")
                if policy not in ACTIVATION_POLICIES:
                    self.fail("BAD_USE", f"{where}: activation_policy {policy!r}, known: {ACTIVATION_POLICIES}")
            auxiliaries = {
                self.identifier(role, f"{where}: auxiliary role"): self.binding(
                    binding, f"{where}: auxiliary {role!r}", objects
                )
                for role, binding in self.object(record.get("auxiliaries", {}), f"{where}: auxiliaries").items()
            }
            uses.append(Use(parameter, input, policy, auxiliaries))
        return tuple(uses)
