"""JSON as the artifact allows it: strict text, exact types, closed member sets (artifact spec, sections 1, 4.4, 15)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from ninfer.artifact.formats import U64_MAX, check_shape
from ninfer.errors import ArtifactError

# The largest registered directory is 8 MB (section 16); this bound keeps a broken length from reading a whole model.
MAX_JSON_BYTES = 64 * 2**20


class JsonReader:
    """Checks the values of one JSON document; every fault is an ArtifactError with the file's path."""

    def __init__(self, path: str) -> None:
        self.path = path

    def fail(self, code: str, detail: str) -> NoReturn:
        raise ArtifactError(code, self.path, detail)

    def parse(self, text: bytes) -> Any:
        """The document; BAD_JSON unless it is UTF-8 JSON without duplicate members, NaN or Infinity."""
        try:
            return json.loads(
                text.decode("utf-8"),
                object_pairs_hook=self._members_once,
                parse_constant=self._constant,
                parse_float=self._finite,
            )
        except UnicodeDecodeError as error:
            self.fail("BAD_JSON", f"directory is not UTF-8 at byte {error.start}")
        except RecursionError:
            self.fail("BAD_JSON", "directory is nested too deeply")
        except ValueError as error:
            self.fail("BAD_JSON", f"directory is not JSON: {error}")

    def _members_once(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            seen: set[str] = set()
            for name, _ in pairs:
                if name in seen:
                    self.fail("BAD_JSON", f"duplicate member {name!r}")
                seen.add(name)
        return members

    def _constant(self, name: str) -> NoReturn:
        self.fail("BAD_JSON", f"{name} is not a JSON value")

    def _finite(self, literal: str) -> float:
        value = float(literal)
        if not math.isfinite(value):
            self.fail("BAD_JSON", f"number {literal[:40]} exceeds binary64")
        return value

    def object(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail("BAD_TYPE", f"{where} must be an object, found {_kind(value)}")
        return value

    def array(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            self.fail("BAD_TYPE", f"{where} must be an array, found {_kind(value)}")
        return value

    def members(
        self, value: Any, where: str, required: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """An object that has every required member and nothing but required and optional ones."""
        record = self.object(value, where)
        missing = [name for name in required if name not in record]
        extra = [name for name in record if name not in required and name not in optional]
        if missing or extra:
            self.fail("BAD_MEMBERS", f"{where}: missing members {missing}, unexpected members {extra}")
        return record

    def string(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            self.fail("BAD_TYPE", f"{where} must be a string, found {_kind(value)}")
        return value

    def identifier(self, value: Any, where: str) -> str:
        """A nonempty string without U+0000 that UTF-8 can encode."""
        text = self.string(value, where)
        if not text or "\0" in text or not _encodable(text):
            self.fail("BAD_ID", f"{where} must be nonempty UTF-8 text without U+0000, found {text!r}")
        return text

    def integer(self, value: Any, where: str, minimum: int = 0) -> int:
        """An integer literal in [minimum, 2^64)."""
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail("BAD_TYPE", f"{where} must be an integer, found {_kind(value)}")
        if not minimum <= value <= U64_MAX:
            shown = value if value.bit_length() < 200 else f"{value.bit_length()} bits"
            self.fail("BAD_TYPE", f"{where} must be an integer in [{minimum}, 2^64), found {shown}")
        return value

    def shape(self, value: Any, where: str) -> tuple[int, ...]:
        dimensions = self.array(value, where)
        for dimension in dimensions:
            if not isinstance(dimension, int) or isinstance(dimension, bool):
                self.fail("BAD_TYPE", f"{where} must hold integers, found {_kind(dimension)}")
            if not 0 < dimension <= U64_MAX:
                self.fail("BAD_SHAPE", f"{where} has a dimension outside [1, 2^64)")
        try:
            check_shape(dimensions)
        except ArtifactError as error:
            self.fail(error.code, f"{where}: {error.detail}")
        return tuple(dimensions)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean {str(value).lower()}"
    if isinstance(value, float):
        return f"real {value!r}"
    return {str: "string", int: "integer", list: "array", dict: "object"}[type(value)]


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def dump(value: Mapping[str, Any], path: str) -> bytes:
    """Compact UTF-8 JSON in insertion order, non-ASCII characters unescaped; BAD_JSON for what JSON cannot hold."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    except (TypeError, ValueError) as error:
        raise ArtifactError("BAD_JSON", path, f"value cannot be written as JSON: {error}") from None
