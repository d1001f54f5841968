"""The JSON text of one call's arguments while the call is being written (serving spec, 7.5)."""

from __future__ import annotations

from ninfer.text.tool_values import string_inside

# A string value flows once it is longer than this. Up to there a value waits for the end of the call, so that a
# repeated key can still take its place: what a client has been sent cannot be taken back.
HELD_CHARACTERS_MAX = 24


class ArgumentsWriter:
    """Members in order of their first appearance. A key that comes again replaces its value if that is still held; if
    not, it is written once more, which every reader of JSON that takes the last value understands.
    """

    def __init__(self) -> None:
        self._out = ["{"]
        self._held: dict[str, str] = {}
        self._sent: set[str] = set()
        self._key = ""
        self._string: list[str] = []
        self._string_length = 0
        self._flows = False
        self.repeated = 0

    def take(self) -> str:
        """The text since the last call."""
        text = "".join(self._out)
        self._out.clear()
        return text

    def member(self, key: str, value: str) -> None:
        """A complete member; `value` is JSON text."""
        self._note(key)
        self._held[key] = value

    def begin_string(self, key: str) -> None:
        """A string whose text follows."""
        self._note(key)
        self._key, self._flows, self._string_length = key, False, 0
        self._string.clear()

    def string(self, text: str) -> None:
        """More of the string, not empty."""
        if self._flows:
            self._out.append(string_inside(text))
            return
        self._string.append(text)
        self._string_length += len(text)
        if self._string_length > HELD_CHARACTERS_MAX:
            self._flow()

    def end_string(self) -> None:
        """The string is complete."""
        if self._flows:
            self._out.append('"')
            self._flows = False
        else:
            self._held[self._key] = f'"{string_inside("".join(self._string))}"'

    def close(self) -> None:
        """All members are there."""
        self._send(list(self._held))
        self._out.append("}")

    def cut(self, *, in_string: bool) -> None:
        """No more will come: what is held goes out, an open string as far as it was written."""
        if in_string and not self._flows:
            self._flow()
        elif not in_string:
            self._send(list(self._held))

    def _note(self, key: str) -> None:
        self.repeated += key in self._held or key in self._sent

    def _flow(self) -> None:
        keys = list(self._held)
        if self._key in self._held:
            keys = keys[: keys.index(self._key)]
            del self._held[self._key]
        self._send(keys)
        self._begin_member(self._key)
        self._out.append('"' + string_inside("".join(self._string)))
        self._flows = True

    def _send(self, keys: list[str]) -> None:
        for key in keys:
            self._begin_member(key)
            self._out.append(self._held.pop(key))

    def _begin_member(self, key: str) -> None:
        joint = ", " if self._sent else ""
        self._out.append(f'{joint}"{string_inside(key)}": ')
        self._sent.add(key)
