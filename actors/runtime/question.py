"""A message that wants an answer: the one who asks waits, the one who is asked always answers."""

from __future__ import annotations

from typing import Generic, TypeVar

import anyio

from ninfer.errors import NinferError

M = TypeVar("M")
A = TypeVar("A")


class Question(Generic[M, A]):
    """`message` on its way to an actor; answered exactly once with a value or an error."""

    def __init__(self, message: M) -> None:
        self.message = message
        self._answered = anyio.Event()
        self._answer: A | None = None
        self._error: NinferError | None = None

    def answer(self, value: A) -> None:
        """Give the value."""
        self._answer = value
        self._answered.set()

    def refuse(self, error: NinferError) -> None:
        """Give an error instead."""
        self._error = error
        self._answered.set()

    async def wait_answer(self) -> A | None:
        """The value, or the error raised."""
        await self._answered.wait()
        if self._error is not None:
            raise self._error
        return self._answer
