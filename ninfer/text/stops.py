"""Stop strings across token borders (serving spec 5.1).

The rule does not look ahead: output ends with the first character that completes a stop string. If it completes
several, the one that began first counts. One matching automaton (Knuth, Morris, Pratt) per stop string gives the state
after each character, so the answer is the same for every split and the cost per character is constant, whatever the
strings are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string that was found.

    stop   the string
    end    index just behind its last character in the text of the push that completed it
    """

    stop: str
    end: int


class StopScanner:
    """Looks for stop strings in a text that arrives in pieces; non-empty strings only."""

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        # Longest first: of those that end together, that one began first.
        self._stops = sorted(stops, key=len, reverse=True)
        self._borders = [_Borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, StopMatch | None]:
        """The text that can no longer be part of a stop string, and the match that ends the text.

        Held back is the longest suffix that begins a stop string. After a match nothing may be pushed any more.
        """
        if not self._stops:
            return text, None
        for position, character in enumerate(text):
            for n, stop in enumerate(self._stops):
                length = self._matched[n]
                while length and stop[length] != character:
                    length = self._borders[n][length]
                self._matched[n] = length + (stop[length] == character)
            for n, stop in enumerate(self._stops):
                if self._matched[n] == len(stop):
                    read = self._held + text[: position + 1]
                    self._held = ""
                    return read[: len(read) - len(stop)], StopMatch(stop, position + 1)
        read = self._held + text
        released = len(read) - max(self._matched)
        self._held = read[released:]
        return read[:released], None

    def finish(self) -> str:
        """The text that was held back for a stop string that did not come."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held


class _Borders:
    """`b[n]`: length of the longest proper prefix of `word[:n]` that is also its suffix, for `0 < n < len(word)`.

    Worked out as far as the text has matched: a stop string may be as long as a request body.
    """

    def __init__(self, word: str) -> None:
        self._word = word
        self._known = [0, 0]

    def __getitem__(self, n: int) -> int:
        word, known = self._word, self._known
        while len(known) <= n:
            last = len(known) - 1
            length = known[last]
            while length and word[last] != word[length]:
                length = known[length]
            known.append(length + (word[last] == word[length]))
        return known[n]
