"""Several answers to one prompt: a request of its own for each, which share what is read of the prompt.

The choices of a request have the seeds that follow each other, so each is what it would be alone with its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import add

import anyio

from ninfer.actors.messages import Finished, Reply, Usage
from ninfer.api.session import Prepared, Session
from ninfer.errors import NinferError

_SEEDS = 1 << 64
_ANOTHER_FAILED = "another choice of the answer failed"


class Choices:
    """The sessions of one answer, one for each choice; at least one."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = tuple(sessions)
        self._turn = 0

    @property
    def received_at(self) -> float:
        """Monotonic time of the receipt."""
        return self.sessions[0].received_at

    @property
    def is_over(self) -> bool:
        """Whether all have ended."""
        if len(self.sessions) == 1:
            return self.sessions[0].is_over
        return all(session.is_over for session in self.sessions)

    def notice(self, news: Callable[[], None] | None) -> None:
        """Call this at every reply and at their ends from now on; None: nothing."""
        for session in self.sessions:
            session.notice(news)

    async def prepare(self, work: Callable[[], Prepared]) -> None:
        """Prepare and queue all of them; raises what the first one that cannot be raises."""
        first: Prepared | None = None

        def of_choice(number: int) -> Prepared:
            nonlocal first
            if first is None or first.request.enforced is not None:  # a constraint's state is one answer's
                made = work()
                first = first or made
            else:
                made = first
            law = first.request.sampling
            law = replace(law, seed=(law.seed + number) % _SEEDS)
            return replace(made, request=replace(made.request, sampling=law))

        for number, session in enumerate(self.sessions):
            try:
                await session.prepare(partial(of_choice, number))
            except Exception as error:
                for other in self.sessions[:number]:
                    other.fail(_ANOTHER_FAILED)
                for other in self.sessions[number + 1 :]:
                    await other.give_up(error)
                raise

    async def next_reply(self) -> tuple[int, Reply]:
        """A reply and the number of its choice; raises the error of a ``Failed``, which ends all. Not to be called when
        all are over.
        """
        if len(self.sessions) == 1:
            return 0, await self.sessions[0].next_reply()
        while True:
            news = anyio.Event()
            self.notice(news.set)
            if (found := self.reply_at_hand()) is not None:
                return found
            await news.wait()

    def reply_at_hand(self) -> tuple[int, Reply] | None:
        """The same if there is one already, in turns; else None."""
        if len(self.sessions) == 1:
            reply = self.sessions[0].reply_at_hand()
            return None if reply is None else (0, reply)
        try:
            return self._next_in_turn()
        except NinferError:
            self.fail(_ANOTHER_FAILED)
            raise

    def fail(self, message: str) -> None:
        """Note that the answer broke off on our side."""
        for session in self.sessions:
            session.fail(message)

    def _next_in_turn(self) -> tuple[int, Reply] | None:
        count = len(self.sessions)
        for step in range(count):
            number = (self._turn + step) % count
            session = self.sessions[number]
            if not session.is_over and (reply := session.reply_at_hand()) is not None:
                self._turn = (number + 1) % count
                return number, reply
        return None


def joined(ends: Sequence[Finished]) -> Finished:
    """What is said of an answer as a whole: one prompt, all output, from the first moment to the last. What belongs to
    one choice alone is left out if there are several.
    """
    if len(ends) == 1:
        return ends[0]
    first = ends[0]
    usage = Usage(
        first.usage.prompt_tokens,
        first.usage.cached_tokens,
        sum(end.usage.completion_tokens for end in ends),
        sum(end.usage.reasoning_tokens for end in ends),
    )
    guesses = [end.speculation for end in ends if end.speculation is not None]
    return Finished(
        first.reason,
        usage,
        None,
        min((end.admitted_at for end in ends if end.admitted_at is not None), default=None),
        min((end.first_token_at for end in ends if end.first_token_at is not None), default=None),
        max((end.last_token_at for end in ends if end.last_token_at is not None), default=None),
        speculation=reduce(add, guesses) if guesses else None,
    )
