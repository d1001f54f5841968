"""What happened to a request so far, and when: noted from what the scheduler takes and gives, read when somebody asks.

Nothing is made for a token: a row of a round changes three numbers of a record that is there. The records of requests
that are gone are kept for a while, the oldest go first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ninfer.actors.messages import RequestTimeline
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev

# Requests that can be asked about, those that are under way included.
KEPT = 1024


@dataclass(slots=True)
class _Record:
    """As :class:`RequestTimeline`, with times of the scheduler's clock."""

    request_id: int
    name: str
    arrived: float
    deadline: float
    prepared: float | None = None
    prompt_tokens: int = 0
    max_tokens: int = 0
    priority: int = 0
    admitted: float | None = None
    lane: int | None = None
    way: str | None = None
    cached_tokens: int = 0
    host_restored: bool = False
    read_tokens: int = 0
    chunks: int = 0
    first_token: float | None = None
    last_token: float | None = None
    drawn_tokens: int = 0
    rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    ended: float | None = None
    finish_reason: str | None = None
    error_code: str | None = None
    retained_tokens: int = 0
    released: float | None = None


class Timelines:
    """Records of the requests under way and of the last ones that are gone, at most :data:`KEPT` together."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._live: dict[int, _Record] = {}
        self._gone: dict[int, _Record] = {}
        self._numbers: dict[str, int] = {}
        self._chunks: dict[int, cmd.StartChunk] = {}  # under way, by the newest step of each

    def saw(self, now: float, event: ev.Event, commands: Iterable[cmd.Command]) -> None:
        """Note one decision of the scheduler."""
        note = _EVENTS.get(type(event))
        if note is not None:
            note(self, now, event)
        for command in commands:
            order = _COMMANDS.get(type(command))
            if order is not None:
                order(self, now, command)
            elif type(command) is cmd.Accept:
                assert isinstance(event, ev.Arrived), "nothing else is accepted"
                self._accept(now, event.name, command)
        if type(event) is ev.Released:
            self._release(now, event)

    def find(self, wanted: str, now: float, ahead_of: Callable[[int], int | None]) -> RequestTimeline | None:
        """What is known of the request with this number or name; None for one that is not known, or not any more.

        ahead_of   how many requests stand in front of one in the queue; None if it is not in it
        """
        number = self._numbers.get(wanted)
        if number is None and wanted.isascii() and wanted.isdigit() and len(wanted) < 19:
            number = int(wanted)
        record = None if number is None else self._live.get(number) or self._gone.get(number)
        return None if record is None else _timeline(record, now, ahead_of(record.request_id))

    # --- events ----------------------------------------------------------------------------------------------------

    def _prepared(self, now: float, event: ev.Prepared) -> None:
        record = self._live.get(event.request_id)
        if record is not None and record.ended is None:
            record.prepared = now
            record.prompt_tokens, record.max_tokens = event.prompt_tokens, event.max_tokens
            record.priority = event.priority

    def _preparation_failed(self, now: float, event: ev.PreparationFailed) -> None:
        record = self._live.get(event.request_id)
        if record is not None and record.ended is None:
            record.ended, record.error_code = now, "request_rejected"

    def _chunk_landed(self, now: float, event: ev.ChunkLanded) -> None:
        chunk = self._chunks.pop(event.step, None)
        record = self._live.get(chunk.request_id) if chunk is not None else None
        if chunk is None or record is None or record.ended is not None:
            return
        record.read_tokens = chunk.end
        record.chunks += 1
        if event.drawn:
            record.first_token = record.last_token = now
            record.drawn_tokens = event.drawn

    def _round_landed(self, now: float, event: ev.RoundLanded) -> None:
        live = self._live
        for row in event.rows:
            record = live.get(row.request_id)
            if record is not None and record.ended is None:
                record.last_token = now
                record.drawn_tokens += row.drawn
                record.rounds += 1
                record.drafted_tokens += row.drafted
                record.accepted_tokens += row.accepted

    def _step_failed(self, _now: float, _event: ev.StepFailed) -> None:
        self._chunks.clear()  # nothing that was launched counts

    # --- commands --------------------------------------------------------------------------------------------------

    def _accept(self, now: float, name: str, command: cmd.Accept) -> None:
        self._live[command.request_id] = _Record(command.request_id, name, now, command.deadline)
        if name:
            self._numbers[name] = command.request_id
        self._forget()

    def _admit(self, now: float, command: cmd.Admit) -> None:
        record = self._live[command.request_id]
        record.admitted, record.lane, record.way = now, command.lane, command.way
        record.cached_tokens = record.read_tokens = command.cached_tokens
        record.host_restored = command.host_restored

    def _start_chunk(self, _now: float, command: cmd.StartChunk) -> None:
        self._chunks[command.step] = command

    def _continue_chunk(self, _now: float, command: cmd.ContinueChunk) -> None:
        self._chunks[command.step] = self._chunks.pop(command.behind)

    def _finish(self, now: float, command: cmd.Finish) -> None:
        record = self._live[command.request_id]
        record.ended, record.finish_reason, record.retained_tokens = now, command.reason, command.retained_tokens

    def _fail(self, now: float, command: cmd.Fail) -> None:
        record = self._live[command.request_id]
        record.ended, record.error_code = now, command.code

    # --- the end ---------------------------------------------------------------------------------------------------

    def _release(self, now: float, event: ev.Released) -> None:
        record = self._live.pop(event.request_id, None)
        if record is not None:
            record.released = now
            self._gone[record.request_id] = record
            self._forget()

    def _forget(self) -> None:
        while self._gone and len(self._gone) + len(self._live) > self._kept:
            record = self._gone.pop(next(iter(self._gone)))
            self._numbers.pop(record.name, None)


def _timeline(record: _Record, now: float, ahead: int | None) -> RequestTimeline:
    def since(at: float | None) -> float | None:
        return None if at is None else at - record.arrived

    return RequestTimeline(
        request_id=record.request_id,
        name=record.name,
        state=_state(record),
        position=ahead,
        age_s=now - record.arrived,
        deadline_s=record.deadline - record.arrived,
        prepared_s=since(record.prepared),
        admitted_s=since(record.admitted),
        first_token_s=since(record.first_token),
        last_token_s=since(record.last_token),
        ended_s=since(record.ended),
        released_s=since(record.released),
        prompt_tokens=record.prompt_tokens,
        max_tokens=record.max_tokens,
        priority=record.priority,
        lane=record.lane,
        way=record.way,
        cached_tokens=record.cached_tokens,
        host_restored=record.host_restored,
        read_tokens=record.read_tokens,
        chunks=record.chunks,
        drawn_tokens=record.drawn_tokens,
        rounds=record.rounds,
        drafted_tokens=record.drafted_tokens,
        accepted_tokens=record.accepted_tokens,
        finish_reason=record.finish_reason,
        error_code=record.error_code,
        retained_tokens=record.retained_tokens,
    )


def _state(record: _Record) -> str:
    if record.ended is not None or record.released is not None:
        return "ended"
    if record.first_token is not None:
        return "decoding"
    if record.admitted is not None:
        return "prefilling"
    return "preparing" if record.prepared is None else "waiting"


_EVENTS: dict[type[Any], Callable[[Timelines, float, Any], None]] = {
    ev.Prepared: Timelines._prepared,
    ev.PreparationFailed: Timelines._preparation_failed,
    ev.ChunkLanded: Timelines._chunk_landed,
    ev.RoundLanded: Timelines._round_landed,
    ev.StepFailed: Timelines._step_failed,
}
_COMMANDS: dict[type[Any], Callable[[Timelines, float, Any], None]] = {
    cmd.Admit: Timelines._admit,
    cmd.StartChunk: Timelines._start_chunk,
    cmd.ContinueChunk: Timelines._continue_chunk,
    cmd.Finish: Timelines._finish,
    cmd.Fail: Timelines._fail,
}
