"""The checkpoint-ring actor and the slot-persistence actor.

Both stand where they will work and take the messages they will take; this build keeps no checkpoints and no slot files,
so whoever asks is told so at once, and nothing is lost in a mailbox nobody reads.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from ninfer.actors.messages import RingMessage, SlotMessage
from ninfer.actors.runtime.mailbox import Mailbox
from ninfer.actors.runtime.question import Question
from ninfer.errors import ActorStopped, Unsupported

M = TypeVar("M")

# One question per lane can be under way at a time; eight lanes are the most a server has.
CAPACITY = 8


class _Refusing(Generic[M]):
    """Answers every question with the same refusal."""

    def __init__(self, name: str, code: str, message: str) -> None:
        self.mailbox: Mailbox[Question[M, None]] = Mailbox(name, CAPACITY)
        self._code = code
        self._message = message

    async def run(self) -> None:
        """Handle questions until the mailbox is closed."""
        async for question in self.mailbox.messages():
            question.refuse(Unsupported(self._message, code=self._code))

    def stop(self) -> None:
        """Answer everybody who still waits."""
        for question in self.mailbox.drain():
            question.refuse(ActorStopped(f"{self.mailbox.name} has stopped"))


class CheckpointRingActor(_Refusing[RingMessage]):
    """Will keep the states of turn boundaries in host memory."""

    def __init__(self) -> None:
        super().__init__("checkpoint ring", "turn_checkpoints_disabled", "This build keeps no turn checkpoints.")


class SlotPersistenceActor(_Refusing[SlotMessage]):
    """Will write sessions to files and read them back."""

    def __init__(self) -> None:
        super().__init__("slot persistence", "slot_persistence_disabled", "This build does not save slots.")
