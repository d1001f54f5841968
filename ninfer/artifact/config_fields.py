"""Taking members out of a component config, each checked as it is taken (artifact spec, section 4.6)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ninfer.errors import ArtifactError

_U32_MAX = 2**32 - 1


class ConfigFields:
    """Takes members out of one JSON object, checking each, and knows at the end which were never asked for."""

    def __init__(self, source: object, path: str, where: str) -> None:
        self._path = path
        self._where = where
        if not isinstance(source, Mapping):
            raise self.bad(f"expected an object, found {type(source).__name__}")
        self._source = source
        self._taken: set[str] = set()

    def bad(self, detail: str) -> ArtifactError:
        return ArtifactError("BAD_CONFIG", self._path, f"{self._where} config: {detail}")

    def has(self, key: str) -> bool:
        return key in self._source

    def take(self, key: str) -> object:
        if key not in self._source:
            raise self.bad(f"{key} is missing")
        self._taken.add(key)
        return self._source[key]

    def close(self) -> None:
        if unknown := sorted(set(self._source) - self._taken):
            raise self.bad(f"unknown key {', '.join(unknown)}")

    def integer(self, key: str, minimum: int = 1) -> int:
        return self._integer(key, self.take(key), minimum)

    def integers(self, key: str, minimum: int = 1) -> tuple[int, ...]:
        return tuple(self._integer(key, item, minimum) for item in self._array(key))

    def real(self, key: str) -> float:
        value = self.take(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.bad(f"{key} must be a real number, found {value!r}")
        if not (0 < value < math.inf):
            raise self.bad(f"{key} must be positive and finite, found {value!r}")
        try:
            return float(value)
        except OverflowError:
            raise self.bad(f"{key} must be positive and finite, found {value!r}") from None

    def boolean(self, key: str) -> bool:
        value = self.take(key)
        if not isinstance(value, bool):
            raise self.bad(f"{key} must be true or false, found {value!r}")
        return value

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        value = self.take(key)
        if not isinstance(value, str) or value not in allowed:
            raise self.bad(f"{key} must be {' or '.join(allowed)}, found {value!r}")
        return value

    def architecture(self, allowed: Sequence[str]) -> str:
        names = self._array("architectures")
        if len(names) != 1 or not isinstance(names[0], str) or names[0] not in allowed:
            raise self.bad(f"architectures must hold exactly one of {', '.join(allowed)}, found {names!r}")
        return names[0]

    def layer_types(self, layers: int, allowed: Sequence[str]) -> tuple[str, ...]:
        kinds = self._array("layer_types")
        if len(kinds) != layers:
            raise self.bad(f"layer_types has {len(kinds)} entries for {layers} layers")
        for kind in kinds:
            if not isinstance(kind, str) or kind not in allowed:
                raise self.bad(f"layer_types must hold {' or '.join(allowed)}, found {kind!r}")
        return tuple(str(kind) for kind in kinds)

    def grouped_heads(self, many: str, few: str) -> tuple[int, int]:
        """Two head counts, the first divisible by the second."""
        larger, smaller = self.integer(many), self.integer(few)
        if larger % smaller:
            raise self.bad(f"{many} {larger} is not divisible by {few} {smaller}")
        return larger, smaller

    def nested(self, key: str) -> ConfigFields:
        return ConfigFields(self.take(key), self._path, f"{self._where}.{key}")

    def _array(self, key: str) -> list[object]:
        value = self.take(key)
        if not isinstance(value, list | tuple):
            raise self.bad(f"{key} must be an array, found {value!r}")
        return list(value)

    def _integer(self, key: str, value: object, minimum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.bad(f"{key} must be an integer, found {value!r}")
        if not minimum <= value <= _U32_MAX:
            raise self.bad(f"{key} must lie in [{minimum}, {_U32_MAX}], found {value}")
        return value
