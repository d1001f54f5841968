"""What is told of a request: checked against the log it comes from, and read once as people read it."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import orjson
import pytest

from ninfer.actors.eventlog import EventLog
from ninfer.config import SchedulerSettings
from ninfer.explain.account import FILE, Account
from ninfer.explain.explainer import REFUSED, Explainer
from ninfer.explain.text import MOST_LINES, lines_of
from ninfer.replay import main, replay
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.machine import Scheduler
from ninfer.step import PAGE_TOKENS
from ninfer.types import Marks
from tests.support.direct import Direct
from tests.support.engines import FakeEngine
from tests.support.memory import Part
from tests.support.storm import Storm

Decisions = Iterable[tuple[float, ev.Event, list[cmd.Command]]]


def written(settings: SchedulerSettings, decisions: Decisions) -> list[bytes]:
    file = io.BytesIO()
    log = EventLog(file)
    log.start(settings)
    for now, event, commands in decisions:
        log.decision(now, event, commands)
    return file.getvalue().splitlines(keepends=True)


def explained(log: list[bytes], wanted: object) -> Account:
    explainer = Explainer(str(wanted))
    replay(log, onlooker=explainer)
    assert explainer.account is not None
    return explainer.account


class Logged(Direct):
    """A served machine whose decisions are kept."""

    def __init__(self, settings: SchedulerSettings, pages: int, words: int = 0) -> None:
        self.decisions: list[tuple[float, ev.Event, list[cmd.Command]]] = []
        super().__init__(FakeEngine(lambda _prompt: [5] * words), settings, pages)

    def send(self, event: ev.Event) -> None:
        self.now += 0.001
        commands = self.machine.handle(event, self.now)
        self.decisions.append((self.now, event, commands))
        for command in commands:
            self._obey(command)

    def explain(self, wanted: object) -> Account:
        return explained(written(self.machine.settings, self.decisions), wanted)


def text(account: Account) -> str:
    return "\n".join(lines_of(account))


# --- against the log -----------------------------------------------------------------------------------------------


def check(account: Account, decisions: Decisions) -> None:
    """Nothing that the log says itself is told otherwise, and no time is unaccounted for."""
    chunks, admits, ends = [], [], []
    for _now, _event, commands in decisions:
        for command in commands:
            match command:
                case cmd.StartChunk(request_id=account.request_id):
                    chunks.append((command.step, command.begin, command.end))
                case cmd.Admit(request_id=account.request_id):
                    admits.append((command.lane, command.way, command.cached_tokens, command.host_restored))
                case cmd.Finish(request_id=account.request_id) | cmd.Fail(request_id=account.request_id):
                    ends.append(command.reason if isinstance(command, cmd.Finish) else command.code)
    assert [(chunk.step, chunk.begin, chunk.end) for chunk in account.chunks] == chunks
    assert ([] if account.end is None or account.end.reason == REFUSED else [account.end.reason]) == ends
    begin, admission = account.begin, account.admission
    if begin is None:
        assert not admits
    else:
        assert [(begin.lane, begin.way, begin.cached_tokens, begin.loaded_pages > 0)] == admits
        assert admission is not None
        assert (begin.state == "none") == (begin.cached_tokens == 0)
        at = 0
        for origin in begin.origins:
            assert origin.begin == at < origin.end
            assert origin.request_id != account.request_id
            at = origin.end
        assert at == begin.cached_tokens
    if admission is not None:
        assert admission.choices[0].lane == admission.lane
        assert begin is None or begin.lane == admission.lane
    last = 0.0
    for wait in account.waits:
        assert wait.begin == pytest.approx(last)
        last = wait.end
    over = begin.at if begin is not None else account.end.at if account.end is not None else last
    if account.waits and account.prepared is not None:
        assert last == pytest.approx(over)
    assert (account.first_token is None) == (account.drawn_tokens == 0)
    assert account.rounds <= account.drawn_tokens
    # A round draws one token, and one more for every guess that was right.
    assert account.drawn_tokens <= 1 + account.rounds + account.accepted_tokens
    assert account.accepted_tokens <= account.drafted_tokens


def test_what_is_told_agrees_with_the_log_and_leaves_no_time_out() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(8):
        storm = Storm(seed)
        storm.start()
        storm.blow(90)
        storm.calm()
        log = written(storm.settings, storm.decisions)
        for request_id in list(storm.clients)[:12]:
            account = explained(log, request_id)
            check(account, storm.decisions)
            assert orjson.loads(orjson.dumps(account))["request_id"] == request_id
            assert text(account).startswith(f"request {request_id}\n")
            kinds.update(wait.cause.kind for wait in account.waits)
            kinds.update([account.fate.what] if account.fate is not None else [])
    assert len(kinds) > 6, "storms have to have something to tell"


# --- one story at a time -------------------------------------------------------------------------------------------


def test_a_wait_for_a_lane_names_its_holder_and_the_queue() -> None:
    server = Logged(SchedulerSettings(max_pending=4), pages=200, words=3)
    first = server.ask(range(100), 3)
    second = server.ask(range(200, 300), 3)
    third = server.ask(range(300, 400), 3)
    server.run()
    account = server.explain(third)
    lanes = [wait.cause for wait in account.waits if wait.cause.kind == "lanes"]
    assert [(cause.holders[0].request_id, cause.ahead) for cause in lanes] == [(first, (second,)), (second, ())]
    assert f"waited for a lane, behind request {second}: lane 0 prefilling for request {first}" in text(account)


def test_a_more_urgent_request_is_seen_to_pass() -> None:
    server = Logged(SchedulerSettings(max_pending=4), pages=200)
    server.ask(range(100), 1)
    patient = server.ask(range(200, 300), 1)
    urgent = server.ask(range(300, 400), 1, priority=-1)
    server.run()
    account = server.explain(urgent)
    assert account.priority == -1
    assert "priority -1" in text(account)
    assert all(not wait.cause.ahead for wait in account.waits)
    assert explained(written(server.machine.settings, server.decisions), patient).waits[-2].cause.ahead == (urgent,)


def test_a_wait_for_pages_says_how_many_and_who_has_them() -> None:
    settings = SchedulerSettings(lanes=2, max_context_tokens=640)
    server = Logged(settings, pages=10)
    greedy = server.ask(range(500), 100)
    waiting = server.ask(range(1000, 1200), 1)
    server.run()
    (cause,) = [wait.cause for wait in server.explain(waiting).waits if wait.cause.kind == "pages"]
    assert (cause.wanted, cause.available) == (4, 0)
    assert [(holder.request_id, holder.pages) for holder in cause.holders] == [(greedy, 10)]
    assert f"waited for pages: 4 pages wanted, 0 to be had, held by lane 0 prefilling for request {greedy}" in text(
        server.explain(waiting)
    )


def test_what_is_reused_and_displaced_is_told_with_its_origin() -> None:
    server = Logged(SchedulerSettings(images=2), pages=200, words=2)
    history = tuple(range(200))
    told = server.serve(history, 40, stop_ids=(9,))
    server.serve(range(1000, 1100), 1)
    more = (*told.prompt, *told.output, *range(500, 700))
    server.serve(more, 1)
    first, second, third = (server.explain(request_id) for request_id in (1, 2, 3))
    assert second.begin is not None
    assert second.begin.displaced is not None
    assert (second.begin.displaced.request_id, second.begin.displaced.fate) == (1, "kept")
    assert first.fate is not None
    assert (first.fate.what, first.fate.request_id) == ("kept", 2)
    assert third.begin is not None
    assert (third.begin.state, third.begin.state_request_id) == ("image", 1)
    assert [(o.begin, o.end, o.request_id) for o in third.begin.origins] == [(0, third.begin.cached_tokens, 1)]
    assert third.begin.cached_tokens == 192
    assert "tokens [0, 192) were read or drawn by request 1" in text(third)
    assert "lane's session of 101 tokens by request 2 makes room for this one" in text(third)


def test_a_session_is_continued_in_its_lane() -> None:
    server = Logged(SchedulerSettings(lanes=2), pages=200, words=2)
    told = server.serve(range(190), 3)
    server.serve((*told.prompt, *told.output, 7, 8), 1)
    account = server.explain(2)
    assert account.admission is not None
    assert [(choice.lane, choice.reusable_tokens, choice.source) for choice in account.admission.choices] == [
        (0, 192, "own"),
        (1, 0, "none"),
    ]
    assert "lane 0 (taken): 192 tokens to go on from, by its own state; retains 193 tokens of request 1" in text(
        account
    )
    assert "the state is the lane's own, left by request 1" in text(account)
    assert "its session is continued by request 2" in text(server.explain(1))


def test_pages_given_up_and_brought_back_are_told() -> None:
    settings = SchedulerSettings(max_context_tokens=640, images=4, host_pages=4)
    server = Logged(settings, pages=10)
    server.serve(range(128), 1)
    server.serve(range(1000, 1600), 40)
    again = (*range(128), 5, 6)
    server.serve(again, 1, marks=Marks(turn=128))
    evicting, restored = server.explain(2), server.explain(3)
    assert sum(one.pages for one in evicting.given_up) == sum(one.parked_pages for one in evicting.given_up) == 2
    assert "2 pages that nobody used were given up for it, 2 of them to host memory" in text(evicting)
    assert restored.begin is not None
    assert restored.begin.loaded_pages == 2
    assert "2 pages came back from host memory" in text(restored)


def test_a_session_whose_blocks_go_while_another_grows_is_told_on_both_sides() -> None:
    server = Logged(SchedulerSettings(lanes=3, max_context_tokens=640, images=4), pages=12, words=400)
    server.serve(range(128), 1)
    server.serve(range(1000, 1128), 1)
    server.serve(range(2000, 2128), 500)  # comes to ten pages, and eight are free
    first, other, growing = server.explain(1), server.explain(2), server.explain(3)
    assert first.fate is not None
    assert (first.fate.what, first.fate.request_id) == ("given up", 3)
    assert "blocks of it were given up for request 3" in text(first)
    assert [(one.pages, one.forgotten_lanes) for one in growing.given_up] == [(1, (0,)), (1, ())]
    told = text(growing)
    assert "2 pages that nobody used were given up for it until" in told
    assert f"lane 0 lost its session with that, at {first.fate.at + first.arrived - growing.arrived:+.3f} s" in told
    assert other.fate is None


def test_a_long_prompt_is_set_aside_and_the_gap_of_a_stream_is_explained() -> None:
    settings = SchedulerSettings(lanes=3, prefill_chunk_tokens=128, max_context_tokens=2048, max_inter_token_s=0.0)
    server = Logged(settings, pages=200, words=60)
    stream = server.ask(range(40), 40)
    for _ in range(4):
        server.land()
    long = server.ask(range(1000, 2200), 1)
    for _ in range(6):
        server.land()
    short = server.ask(range(3000, 3100), 1)
    server.run()
    account = server.explain(long)
    (pause,) = account.set_aside
    assert pause.tokens == {str(short): 100}
    assert f"100 tokens of request {short} read" in text(account)
    assert sum(chunk.end - chunk.begin for chunk in account.chunks) == 1200
    gap = server.explain(stream).longest_gap
    assert gap is not None
    assert [ran.kind for ran in gap.ran] == ["chunk", "round"]
    assert gap.ran[0].request_ids[0] in (long, short)
    assert gap.ran[-1].request_ids == (stream,)
    assert "longest gap between tokens" in text(server.explain(stream))


def test_a_chunk_in_parts_is_one_chunk_and_its_parts_are_told_in_the_gap_of_a_stream() -> None:
    # A bound that nothing keeps: once a step of each kind has been seen, chunks have as many parts as there can be.
    settings = SchedulerSettings(lanes=3, prefill_chunk_tokens=128, max_context_tokens=2048, max_inter_token_s=0.0005)
    server = Logged(settings, pages=200, words=60)
    stream = server.ask(range(40), 40)
    for _ in range(4):
        server.land()
    long = server.ask(range(1000, 1128), 1)
    while server.flight:
        server.now += isinstance(server.flight[0][0], Part)  # a second that is seen in the gap
        server.land()
    account = server.explain(long)
    (chunk,) = account.chunks
    assert (chunk.begin, chunk.end) == (0, 128)
    assert chunk.landed is not None
    assert chunk.device_s == pytest.approx(0.004)
    assert "0.004 s on the device" in text(account)
    assert f"part of a chunk of request {long}" in text(server.explain(stream))


def test_a_client_that_leaves_while_its_prompt_is_set_aside() -> None:
    settings = SchedulerSettings(lanes=2, prefill_chunk_tokens=128, max_context_tokens=2048)
    server = Logged(settings, pages=200)
    long = server.ask(range(1000, 2200), 1)
    server.land()
    server.ask(range(3000, 3100), 1)
    while all(step.request_id == long for step, _pending in server.flight):
        server.land()
    server.release(long)
    account = server.explain(long)
    assert [list(pause.tokens.values()) for pause in account.set_aside] == [[100]]
    assert account.end is not None
    assert account.end.reason == "cancelled"


def test_slot_files_are_origins_too() -> None:
    settings, blocks = SchedulerSettings(images=3), ("a", "b")
    machine = Scheduler(settings)
    events: list[ev.Event] = [
        ev.PlanMade(1, 2, ""),
        ev.ModelLoaded(1, 2, 200, ""),
        ev.WarmedUp(),
        ev.SlotAsked(1, 0, "restore", tokens=130, blocks=blocks),
        ev.SlotDone(1, 0, True),
        ev.Arrived(2, "req_x_1"),
        ev.Prepared(1, 140, 1, blocks),
    ]
    decisions = [(float(at), event, machine.handle(event, float(at))) for at, event in enumerate(events)]
    account = explained(written(settings, decisions), "req_x_1")
    assert account.begin is not None
    assert [origin.request_id for origin in account.begin.origins] == [FILE]
    assert account.begin.state_request_id == FILE
    assert "tokens [0, 128) were read or drawn by a slot file" in text(account)
    assert "retains 130 tokens of a slot file" in text(account)
    assert text(account).startswith("request 1 (req_x_1)")


def test_files_of_the_disk_cache_are_origins_too() -> None:
    settings, blocks = SchedulerSettings(images=3, disk_bytes=9, disk_least_tokens=64), ("a", "b")
    machine = Scheduler(settings)
    events: list[ev.Event] = [
        ev.PlanMade(1, 2, ""),
        ev.ModelLoaded(1, 2, 200, ""),
        ev.WarmedUp(),
        ev.DiskFound("kv-1-1", 9, blocks, (2,)),
        ev.Arrived(1, "req_x_1"),
        ev.Prepared(1, 140, 1, blocks),
        ev.DiskRead(1, True),
        ev.DiskDone(1, True),
    ]
    decisions = [(float(at), event, machine.handle(event, float(at))) for at, event in enumerate(events)]
    account = explained(written(settings, decisions), "req_x_1")
    assert account.begin is not None
    assert account.begin.way == "restore_disk"
    assert account.begin.state_request_id == FILE
    assert [origin.request_id for origin in account.begin.origins] == [FILE]


@pytest.mark.parametrize(("action", "fate"), [("erase", "is erased"), ("restore", "makes room for a slot file")])
def test_a_session_that_a_slot_action_ends(action: str, fate: str) -> None:
    server = Logged(SchedulerSettings(images=3), pages=200)
    server.serve(range(100), 1)
    server.send(ev.SlotAsked(1, 0, action, tokens=130, blocks=("a", "b")))
    assert fate in text(server.explain(1))


def test_a_fault_takes_the_session_and_the_request() -> None:
    server = Logged(SchedulerSettings(lanes=2, steps_ahead=0), pages=200)
    server.serve(range(100), 1)
    server.ask(range(200, 300), 5)
    server.send(ev.StepFailed(server.flight[0][0].step, "broken"))
    assert "is gone with a fault of the device" in text(server.explain(1))
    failed = server.explain(2)
    assert failed.end is not None
    assert failed.end.reason == "internal_error"
    assert "never landed" in text(failed)


def test_long_lists_are_cut_in_the_text_alone() -> None:
    server = Logged(SchedulerSettings(prefill_chunk_tokens=128, max_context_tokens=8192), pages=200)
    server.serve(range(128 * (MOST_LINES + 5)), 1)
    account = server.explain(1)
    assert len(account.chunks) == MOST_LINES + 5
    assert "and 5 more chunks" in text(account)
    assert account.chunks[0].end % PAGE_TOKENS == 0


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_explains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Logged(SchedulerSettings(), pages=200)
    server.serve(range(100), 1)
    path = tmp_path / "run.log"
    path.write_bytes(b"".join(written(server.machine.settings, server.decisions)))
    assert main([str(path), "--explain", "1"]) == 0
    assert "begun in lane 0: full_reset, 0 tokens reused" in capsys.readouterr().out
    assert main([str(path), "--explain", "1", "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out)["end"]["reason"] == "output_limit"
    assert main([str(path), "--explain", "1", "--until", "8"]) == 0
    assert main([str(path), "--explain", "77"]) == 1
    assert "there is no request 77 in it" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(path), "--json"])
