"""Whether a text in Markdown ends inside code, judged only by what stands before (serving spec, 7.5).

Fences are lines that begin with three or more backticks or tildes; code spans begin and end with runs of backticks of
one length and do not reach beyond their paragraph.
"""

from __future__ import annotations

import re

_RUNS = re.compile(r"`+|~+|\n|[^\S\n]+|[^`~\s]+")


class Quotes:
    """Reads a text that arrives in pieces."""

    def __init__(self) -> None:
        self._run = ""  # backticks or tildes that the text ends with; more of them may follow
        self._run_begins_line = False
        self._fence = ""  # the run that opened the fence we are in
        self._fence_line = False  # still on the line that opens it, where a backtick would show that it is a span
        self._closing = False  # on a line of the fence that so far could close it
        self._span = 0  # length of the run that opened the code span we are in
        self._line_is_blank = True

    def push(self, text: str) -> None:
        """Read more text."""
        for found in _RUNS.finditer(text):
            piece = found.group()
            if piece[0] in "`~":
                if self._run and self._run[0] != piece[0]:
                    self._end_run()
                if not self._run:
                    self._run_begins_line = self._line_is_blank
                self._run += piece
                self._line_is_blank = False
                continue
            self._end_run()
            if piece == "\n":
                self._end_line()
            elif not piece.isspace():
                self._line_is_blank = self._closing = False

    def quotes(self, *, opens_line_alone: bool) -> bool:
        """Whether what follows stands in code.

        opens_line_alone   it is of a kind that no code span has at the beginning of a line: a span that was still open
                           before that line was a stray backtick
        """
        self._end_run()
        if self._fence:
            return True
        return bool(self._span) and not (opens_line_alone and self._line_is_blank)

    def _end_run(self) -> None:
        run, self._run = self._run, ""
        if not run:
            return
        if self._fence and not self._fence_line:
            fits = run[0] == self._fence[0] and len(run) >= len(self._fence)
            self._closing = self._run_begins_line and fits
        elif self._fence_line and run[0] == self._fence[0] == "`":
            self._span = 0 if len(run) == len(self._fence) else len(self._fence)
            self._fence, self._fence_line = "", False
        elif not self._fence and self._run_begins_line and len(run) >= 3:
            self._fence, self._fence_line, self._span = run, True, 0
        elif not self._fence and run[0] == "`":
            if not self._span:
                self._span = len(run)
            elif self._span == len(run):
                self._span = 0

    def _end_line(self) -> None:
        if self._closing:
            self._fence = ""
        if self._line_is_blank:
            self._span = 0
        self._closing = self._fence_line = False
        self._line_is_blank = True
