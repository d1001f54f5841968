"""Frames on their way out: written by whoever leaves a reply while the peer keeps up, and by the task otherwise."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import aclosing

import anyio
import pytest

from ninfer.api import streams
from ninfer.api.edge import Exchange
from ninfer.api.envelopes import Fault
from ninfer.errors import NinferError

pytestmark = pytest.mark.asyncio


class Replies:
    """A source of words; `.` is the last."""

    def __init__(self, *words: str) -> None:
        self.words = deque(words)
        self.news: Callable[[], None] | None = None
        self.is_over = False
        self.failed: list[str] = []

    def notice(self, news: Callable[[], None] | None) -> None:
        self.news = news

    def reply_at_hand(self) -> str | None:
        if not self.words:
            return None
        word = self.words.popleft()
        if word == "!":
            raise NinferError("it broke")
        self.is_over = word == "."
        return word

    def fail(self, message: str) -> None:
        self.failed.append(message)

    def leave(self, *words: str) -> None:
        for word in words:
            self.words.append(word)
            if self.news is not None:
                self.news()


class Spelling:
    """Frames that are the words."""

    keep_alive = b"~"

    def __init__(self, opening: bytes = b"") -> None:
        self._opening = opening

    def opening(self) -> bytes:
        return self._opening

    def frames_of(self, reply: str) -> bytes:
        if reply == "?":
            raise ValueError("no such word")
        return reply.encode()

    def failure(self, fault: Fault) -> bytes:
        return f"<{fault.message}>".encode()


class Peer:
    """Takes what is written now, or does not."""

    def __init__(self) -> None:
        self.takes = True
        self.written: list[bytes] = []

    def write_now(self, data: bytes) -> bool:
        if self.takes:
            self.written.append(data)
        return self.takes

    def exchange(self) -> Exchange:
        async def receive() -> dict[str, object]:
            raise AssertionError("nothing is received")

        async def send(_message: dict[str, object]) -> None:
            raise AssertionError("nothing is sent")

        return Exchange("req_1", receive, send, [], self.write_now)


class Answer:
    """A stream that runs, and what its task has sent."""

    def __init__(self, replies: Replies, peer: Peer, opening: bytes = b"", keep_alive_s: float = 3600.0) -> None:
        self.sent: list[bytes] = []
        self.replies = replies
        self._stream = streams._Stream(replies, Spelling(opening), peer.exchange())
        self._keep_alive_s = keep_alive_s
        self.go_on = anyio.Event()
        self.go_on.set()

    async def run(self) -> None:
        async with aclosing(self._stream.pieces(self._keep_alive_s)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                self.sent.append(piece)
                await self.go_on.wait()


async def test_what_the_peer_takes_is_written_as_it_is_left() -> None:
    replies, peer = Replies("early "), Peer()
    answer = Answer(replies, peer, b"head ")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer.run)
        await anyio.wait_all_tasks_blocked()
        assert answer.sent == [b"head ", b"early "]
        replies.leave("a", "", "b")
        assert peer.written == [b"a", b"b"]  # at once, and nothing for a reply without frames
        replies.leave(".")
    assert peer.written == [b"a", b"b"]
    assert answer.sent[2:] == [b"."]  # the end is the task's
    assert replies.news is None


async def test_what_waits_for_a_slow_peer_is_joined() -> None:
    replies, peer = Replies(), Peer()
    answer = Answer(replies, peer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer.run)
        await anyio.wait_all_tasks_blocked()
        peer.takes = False
        answer.go_on = anyio.Event()
        replies.leave("a", "b")  # both before the task has come to it
        await anyio.wait_all_tasks_blocked()
        assert answer.sent == [b"ab"]
        replies.leave("c", "d", "e")  # while it waits for the peer
        answer.go_on.set()
        await anyio.wait_all_tasks_blocked()
        assert answer.sent == [b"ab", b"cde"]
        peer.takes = True
        replies.leave("f")
        assert peer.written == [b"f"]
        replies.leave("g", ".")
    assert peer.written == [b"f", b"g"]
    assert answer.sent == [b"ab", b"cde", b"."]


async def test_what_was_refused_is_written_first_when_the_peer_takes_more() -> None:
    replies, peer = Replies(), Peer()
    answer = Answer(replies, peer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer.run)
        await anyio.wait_all_tasks_blocked()
        peer.takes = False
        replies.leave("a")
        peer.takes = True
        replies.leave("b")  # still before the task
        assert peer.written == [b"ab"]
        await anyio.wait_all_tasks_blocked()
        assert answer.sent == []
        replies.leave(".")
    assert answer.sent == [b"."]


async def test_pieces_have_a_size() -> None:
    many = ["x" * 1000] * 200
    replies, peer = Replies(*many), Peer()
    answer = Answer(replies, peer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer.run)
        await anyio.wait_all_tasks_blocked()
        assert [len(piece) for piece in answer.sent] == [66_000, 66_000, 66_000, 2_000]
        replies.words.extend(many)
        replies.leave("y")  # one call of news for all of them
        assert [len(piece) for piece in peer.written] == [66_000]
        await anyio.wait_all_tasks_blocked()
        assert b"".join(answer.sent[4:]) == b"x" * 134_000 + b"y"
        replies.leave(".")


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("word", ["!", "?"])
async def test_a_stream_that_breaks_says_so(word: str, takes: bool) -> None:
    replies, peer = Replies(), Peer()
    peer.takes = takes
    answer = Answer(replies, peer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer.run)
        await anyio.wait_all_tasks_blocked()
        replies.leave("a", word, "never")
    assert b"".join(peer.written + answer.sent) == b"a<Internal server error.>"
    assert len(replies.failed) == (word == "?")  # the other fault is the source's own


async def test_a_source_that_is_over_is_not_asked() -> None:
    replies = Replies("!")
    replies.is_over = True
    answer = Answer(replies, Peer(), b"head")
    await answer.run()
    assert answer.sent == [b"head"]


async def test_silence_is_counted_from_what_was_written_last() -> None:
    replies, peer = Replies(), Peer()
    answer = Answer(replies, peer, keep_alive_s=0.1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer.run)
        await anyio.wait_all_tasks_blocked()
        begun = anyio.current_time()
        while anyio.current_time() < begun + 0.08:
            await anyio.lowlevel.checkpoint()
        written_at = anyio.current_time()
        replies.leave("a")
        assert peer.written == [b"a"]
        with anyio.fail_after(5):
            while not answer.sent:
                await anyio.lowlevel.checkpoint()
        assert anyio.current_time() >= written_at + 0.1
        replies.leave("b", ".")
    assert answer.sent == [b"~", b"b."] or answer.sent == [b"~", b"."]


async def test_a_stream_that_nobody_wants_any_more_listens_no_longer() -> None:
    replies = Replies()
    answer = Answer(replies, Peer())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer.run)
        await anyio.wait_all_tasks_blocked()
        assert replies.news is not None
        tasks.cancel_scope.cancel()
    assert replies.news is None
