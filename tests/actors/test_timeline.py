"""What is known of requests: agrees with the scheduler through storms, and is bounded."""

from __future__ import annotations

from dataclasses import replace

from ninfer.actors.messages import RequestTimeline
from ninfer.actors.timeline import Timelines
from ninfer.config import SchedulerSettings
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.machine import Scheduler
from tests.support.storm import Storm


class Watched:
    """A scheduler that serves, and the timelines of its requests."""

    def __init__(self, settings: SchedulerSettings, kept: int = 8) -> None:
        self.machine = Scheduler(settings)
        self.timelines = Timelines(kept)
        self.now = 0.0
        self.send(ev.PlanMade(1, 2, ""), ev.ModelLoaded(1, 2, 200, ""), ev.WarmedUp())

    def send(self, *events: ev.Event) -> list[cmd.Command]:
        commands: list[cmd.Command] = []
        for event in events:
            self.now += 1.0
            commands = self.machine.handle(event, self.now)
            self.timelines.saw(self.now, event, commands)
        return commands

    def find(self, wanted: object) -> RequestTimeline | None:
        return self.timelines.find(str(wanted), self.now, lambda number: self.machine.ahead_of(number, self.now))

    def known(self, wanted: object) -> RequestTimeline:
        found = self.find(wanted)
        assert found is not None
        return found


def test_a_request_from_its_arrival_to_its_end() -> None:
    server = Watched(SchedulerSettings(prefill_chunk_tokens=128, max_inter_token_s=0.0, steps_ahead=0, max_pending=3))
    server.send(ev.Arrived(1, "req_a_1"))
    assert (server.known("req_a_1").state, server.known(1).deadline_s) == ("preparing", 30.0)
    server.send(ev.Prepared(1, 200, 3, priority=2))
    reading = server.known(1)
    assert (reading.state, reading.prepared_s, reading.admitted_s, reading.lane) == ("prefilling", 1.0, 1.0, 0)
    assert (reading.way, reading.prompt_tokens, reading.read_tokens, reading.priority) == ("full_reset", 200, 0, 2)
    server.send(ev.Arrived(2, "req_a_2"), ev.Prepared(2, 10, 1), ev.Arrived(3), ev.Prepared(3, 10, 1, priority=-1))
    assert [(server.known(n).state, server.known(n).position) for n in (1, 2, 3)] == [
        ("prefilling", None),
        ("waiting", 1),
        ("waiting", 0),
    ]
    server.send(ev.ChunkLanded(1, 0, False, 0.1))
    assert (server.known(1).read_tokens, server.known(1).chunks) == (128, 1)
    server.send(ev.ChunkLanded(2, 1, False, 0.1))
    first = server.known(1)
    assert (first.state, first.read_tokens, first.chunks, first.drawn_tokens) == ("decoding", 200, 2, 1)
    assert first.first_token_s == first.last_token_s == 7.0
    server.send(*(ev.RoundLanded(step, (ev.RowLanded(1, 1, step == 4),), 0.1) for step in (3, 4)))
    last = server.known(1)
    assert (last.drafted_tokens, last.accepted_tokens) == (0, 0)
    assert (last.state, last.drawn_tokens, last.rounds, last.last_token_s, last.ended_s) == ("ended", 3, 2, 9.0, 9.0)
    assert (last.finish_reason, last.error_code, last.retained_tokens) == ("stop_token", None, 203)
    assert last.released_s is None
    server.send(ev.Released(1))
    assert (server.known(1).released_s, server.known(1).age_s) == (10.0, 10.0)


def test_guesses_are_counted() -> None:
    server = Watched(SchedulerSettings(steps_ahead=0, draft_tokens=4))
    server.send(ev.Arrived(1), ev.Prepared(1, 70, 30), ev.ChunkLanded(1, 1, False, 0.1))
    server.send(ev.RoundLanded(2, (ev.RowLanded(1, 3, False, (), 4, 2),), 0.1))
    server.send(ev.RoundLanded(3, (ev.RowLanded(1, 1, False, (), 3, 0),), 0.1))
    known = server.known(1)
    assert (known.drawn_tokens, known.rounds, known.drafted_tokens, known.accepted_tokens) == (5, 2, 7, 2)


def test_ends_without_an_answer() -> None:
    server = Watched(SchedulerSettings(max_pending=8, pending_timeout_s=4.5))
    server.send(ev.Arrived(1), ev.PreparationFailed(1), ev.Released(1))
    assert (server.known(1).state, server.known(1).error_code) == ("ended", "request_rejected")
    server.send(ev.Arrived(2), ev.Tick(), ev.Tick(), ev.Tick(), ev.Tick(), ev.Tick())
    assert server.known(2).error_code == "request_queue_timeout"
    server.send(ev.Prepared(2, 10, 1), ev.PreparationFailed(2))  # news that came too late
    assert (server.known(2).error_code, server.known(2).prepared_s) == ("request_queue_timeout", None)
    server.send(ev.Arrived(3), ev.Prepared(3, 100, 5), ev.Released(3))
    gone = server.known(3)
    assert (gone.finish_reason, gone.released_s, gone.chunks) == ("cancelled", 2.0, 0)
    server.send(ev.ChunkLanded(1, 1, False, 0.1), ev.Released(3))
    assert server.known(3) == replace(gone, age_s=4.0)


def test_requests_that_are_gone_are_forgotten_oldest_first_and_live_ones_never() -> None:
    server = Watched(SchedulerSettings(max_pending=20), kept=3)
    for number in range(1, 6):
        server.send(ev.Arrived(number, f"req_{number}"))
    server.send(ev.Released(2), ev.Released(1))
    assert [number for number in range(1, 7) if server.find(number) is not None] == [3, 4, 5]
    server.send(ev.Released(4), ev.Released(3), ev.Arrived(6, "req_6"))
    assert [number for number in range(1, 7) if server.find(f"req_{number}") is not None] == [3, 5, 6]
    for wanted in ("", "0", "99", "req_99", "-1", "\N{SUPERSCRIPT TWO}", "9" * 40):
        assert server.find(wanted) is None


def test_storms_leave_no_request_untold() -> None:
    total = 0
    for seed in range(12):
        storm = Storm(seed)
        storm.start()
        storm.blow(120)
        storm.calm()
        timelines = Timelines(10_000)
        drawn: dict[int, int] = {}
        for now, event, commands in storm.decisions:
            timelines.saw(now, event, commands)
        for number, client in storm.clients.items():
            found = timelines.find(str(number), storm.now, lambda _number: None)
            assert found is not None
            assert found.state == "ended"
            assert found.released_s is not None
            finishes = [end.reason for end in client.ends if isinstance(end, cmd.Finish)]
            assert finishes == ([] if found.finish_reason is None else [found.finish_reason])
            if client.admitted is not None:
                assert (found.lane, found.way) == (client.admitted.lane, client.admitted.way)
                assert found.cached_tokens <= found.read_tokens <= found.prompt_tokens
            drawn[number] = found.drawn_tokens
            assert found.drawn_tokens <= client.drawn + client.drawing
        assert not timelines._chunks
        total += sum(drawn.values())
    assert total > 200
