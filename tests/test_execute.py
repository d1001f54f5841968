"""The engine behind a replay: the tokens of a run again, and what is said when they are others."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import orjson
import pytest

from ninfer.actors.eventlog import EventLog
from ninfer.actors.messages import GenerationRequest
from ninfer.actors.system import System
from ninfer.artifact.binder import BoundArtifact, bind
from ninfer.artifact.container import Artifact
from ninfer.artifact.tiny import build_tiny
from ninfer.config import EngineSettings, LogSettings, SchedulerSettings, Settings
from ninfer.constraints.compiler import Compiler
from ninfer.constraints.constraint import Constraint, RegexAnswer
from ninfer.constraints.enforced import enforce
from ninfer.constraints.matcher import Reading
from ninfer.embedded import ARTIFACT
from ninfer.execute import Executor, Loaded, Model
from ninfer.ledger import PromptIdentity
from ninfer.replay import Onlooker, main, replay
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.machine import Scheduler
from ninfer.scheduler.records import EngineRecord, build, to_record
from ninfer.served import open_served
from ninfer.server import open_event_log
from ninfer.types import Marks, Sampling
from tests.actors.test_guesses import REPEATED, TEXT, embedded_requests
from tests.actors.test_guesses_under_masks import MEMBERS, constrained
from tests.actors.test_same_text import Builder
from tests.support.engines import FakeEngine
from tests.support.system import GREEDY, TOKENIZER, collect, echo, request_for, running

pytestmark = pytest.mark.asyncio

CONTEXT = 512
ENGINE = EngineSettings(
    max_context_tokens=CONTEXT, kv_capacity_tokens=None, lanes=2, prefill_chunk_tokens=64, host_images=4, host_pages=8
)
SCHEDULER = SchedulerSettings(
    lanes=2, max_context_tokens=CONTEXT, prefill_chunk_tokens=64, max_pending=32, images=4, host_pages=8
)
PAGES = 10
WARM = Sampling(temperature=1.0, top_k=20, top_p=0.95, min_p=0.0, presence_penalty=1.5, frequency_penalty=0.5, seed=7)


COMPILER = Compiler(TOKENIZER)
HEX = Constraint(RegexAnswer("([0-9a-f]{2} )+", "structured_outputs.regex"))


def conversation() -> list[GenerationRequest]:
    """Long prompts for few pages, two that go on from others, one that draws, some that stop early."""
    ids = TOKENIZER.encode("The quick brown fox jumps over the lazy dog. " * 20)
    every_seventh = tuple(range(3, TOKENIZER.id_count, 7))
    prompts = [ids[:200], ids[5:150], (*ids[:200], *ids[9:40]), ids[30:330], ids[5:170], ids[:200]]
    return [
        GenerationRequest(
            prompt_ids=tuple(prompt),
            opens_think=False,
            sampling=WARM if number % 2 else GREEDY,
            max_tokens=9 + number,
            stops=(),
            stop_ids=every_seventh if number == 3 else (),
            marks=Marks(turn=len(prompt)),
            enforced=enforce(COMPILER.compile(HEX), Reading()) if number in (1, 4) else None,
        )
        for number, prompt in enumerate(prompts)
    ]


async def serve(bound: BoundArtifact, log: EventLog) -> System:
    builder = Builder(bound, replace(ENGINE, kv_capacity_tokens=PAGES * 64), TOKENIZER)
    system = System(SCHEDULER, builder, TOKENIZER, log, lambda: 0.0)
    requests = conversation()
    await ask_all(system, [requests[:2], requests[2:4], requests[4:]])
    return system


async def answer(system: System, request: GenerationRequest) -> None:
    """Ask and read the answer to its end."""
    ticket = await system.gateway.arrive()
    await ticket.submit(replace(request, identity=PromptIdentity.of(ticket.names, request.prompt_ids)))
    await collect(ticket.replies)
    await ticket.release()


async def ask_all(system: System, groups: Sequence[Sequence[GenerationRequest]]) -> None:
    """Start a system, ask it everything, a group at once, and stop it."""
    ready = anyio.Event()

    async def run() -> None:
        assert await system.run(lambda: None, ready.set) == 0, system.last_words

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await ready.wait()
            for group in groups:
                async with anyio.create_task_group() as asking:
                    for request in group:
                        asking.start_soon(answer, system, request)
            system.stop()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.ninfer"
    build_tiny(path)
    return path


@pytest.fixture(scope="module")
def run(tiny: Path) -> list[bytes]:
    file = io.BytesIO()
    with Artifact.open(tiny) as artifact:
        bound = bind(artifact)
        engine = EngineRecord(ENGINE, artifact.artifact_id, bound.target, bound.weights_id)
        anyio.run(serve, bound, EventLog(file, content=True, engine=engine))
    return file.getvalue().splitlines(keepends=True)


def executed(tmp_path: Path, lines: Sequence[bytes], model: Path, *options: str) -> int:
    log = tmp_path / "run.log"
    log.write_bytes(b"".join(lines))
    return main([str(log), "--execute", str(model), *options])


def changed(lines: Sequence[bytes], at: int, **members: object) -> list[bytes]:
    return [*lines[:at], orjson.dumps({**orjson.loads(lines[at]), **members}) + b"\n", *lines[at + 1 :]]


def where(lines: Sequence[bytes], **members: object) -> int:
    return next(at for at, line in enumerate(lines) if members.items() <= orjson.loads(line).items())


def renumbered(lines: Sequence[bytes]) -> list[bytes]:
    return [orjson.dumps({**orjson.loads(line), "seq": at}) + b"\n" for at, line in enumerate(lines)]


async def test_a_run_draws_its_tokens_again(
    tmp_path: Path, run: list[bytes], tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = b"".join(run)
    for kind in (b"RestoreState", b"CaptureState", b"ParkPages"):
        assert kind in text, "the run has to be one in which states and pages move"
    tokens = sum(len(orjson.loads(line)["token_ids"]) for line in run if b'"Drawn"' in line)
    assert executed(tmp_path, run, tiny) == 0
    out = capsys.readouterr().out
    assert "on cpu" in out
    assert f"compared {tokens} tokens: same" in out
    assert executed(tmp_path, run, tiny, "--until", str(len(run) // 2), "--device", "cpu") == 0
    assert "cut short" in capsys.readouterr().out


async def test_a_run_with_guesses_draws_its_tokens_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever was guessed, the rounds have as many tokens again, and the same."""
    scheduler = replace(SCHEDULER, steps_ahead=0, draft_tokens=3, copied_tokens=7)
    engine = replace(ENGINE, drafter="mtp", draft_tokens=7)
    file = io.BytesIO()
    with Artifact.open(ARTIFACT) as artifact:
        served = open_served(artifact, Settings(ARTIFACT, engine=engine))
        record = EngineRecord(engine, artifact.artifact_id, served.bound.target, served.bound.weights_id)
        tokenizer = served.model.tokenizer
        builder = Builder(served.bound, engine, tokenizer)
        log = EventLog(file, content=True, engine=record)
        system = System(scheduler, builder, tokenizer, log, lambda: 0.0)
        requests = embedded_requests(tokenizer)
        record_text = Constraint(RegexAnswer('\\{"temperature": [0-9]{1,3}, "humidity": (high|low)\\}', "r"))
        enforced = enforce(Compiler(tokenizer).compile(record_text), Reading())
        thinking = enforce(Compiler(tokenizer).compile(record_text), Reading(opens_think=True, thinking_budget=9))
        ids = tuple(tokenizer.encode_with_control(f"{TEXT.partition('</think>')[0]}{REPEATED}"))
        thinks = replace(requests[0], prompt_ids=ids, opens_think=True, enforced=thinking)
        members = constrained(tokenizer, Compiler(tokenizer), MEMBERS)
        await ask_all(system, [requests, [replace(requests[0], enforced=enforced), members], [thinks]])
        assert system.machine.statistics().totals.copied_accepted_tokens > 5
    lines = file.getvalue().splitlines(keepends=True)
    drawn = [len(orjson.loads(line)["token_ids"]) for line in lines if b'"Drawn"' in line]
    assert max(drawn) > 2, "some round has to draw several tokens"
    assert any(orjson.loads(line)["guessed"] for line in lines if b'"MaskReady"' in line)
    assert executed(tmp_path, lines, ARTIFACT) == 0
    assert f"compared {sum(drawn)} tokens: same" in capsys.readouterr().out
    at = next(n for n, line in enumerate(lines) if b'"Drawn"' in line and len(orjson.loads(line)["token_ids"]) > 2)
    first, *others = orjson.loads(lines[at])["token_ids"]
    assert executed(tmp_path, changed(lines, at, token_ids=[first, others[0] + 1, *others[1:]]), ARTIFACT) == 1
    assert f"the log has {first} {others[0] + 1}" in capsys.readouterr().err


class Standing(Model):
    """Nothing is loaded: an engine stands ready."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine

    def load(self, logged: EngineRecord, pages: int) -> Loaded:
        return Loaded(self._engine, "nowhere")


async def test_chunks_in_parts_are_run_again_in_parts() -> None:
    # A bound that nothing keeps, so that every chunk beside a stream is cut.
    settings = replace(SCHEDULER, prefix_reuse=False, max_inter_token_s=0.0005, images=0, host_pages=0)
    file = io.BytesIO()
    log = EventLog(file, content=True, engine=EngineRecord(ENGINE, "a", "t", "w"))
    async with running(settings, engine=FakeEngine(echo), log=log) as state, anyio.create_task_group() as asking:
        for prompt in ("a stream " * 20, "a prompt of many chunks " * 25):
            asking.start_soon(answer, state.system, request_for(prompt))
    lines = file.getvalue().splitlines(keepends=True)
    parts = sum(b'"ContinueChunk"' in line for line in lines)
    assert parts
    executor = Executor(Standing(FakeEngine(echo)))
    replay(lines, onlooker=executor)
    assert executor.tokens == sum(len(orjson.loads(line)["token_ids"]) for line in lines if b'"Drawn"' in line)
    assert executor.stopped_at is None


async def test_the_log_of_a_server_names_its_engine(tmp_path: Path, tiny: Path) -> None:
    with Artifact.open(tiny) as artifact:
        for name, script in (("model.log", None), ("scripted.log", tmp_path / "script")):
            log_settings = LogSettings(event_log=tmp_path / name)
            settings = Settings(tiny, script=script, engine=ENGINE, scheduler=SCHEDULER, log=log_settings)
            served = open_served(artifact, settings)
            with open_event_log(settings, served) as log:
                log.start(settings.scheduler)
            header = orjson.loads((tmp_path / name).read_bytes())
            if script is not None:
                assert header["engine"] is None
                continue
            record = EngineRecord(ENGINE, artifact.artifact_id, served.bound.target, served.bound.weights_id)
            assert build(EngineRecord, header["engine"]) == record
            assert record.artifact_id


async def test_the_first_other_token_is_named(
    tmp_path: Path, run: list[bytes], tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = where(run, type="Drawn", request_id=2)
    (token,) = orjson.loads(run[at])["token_ids"]
    assert executed(tmp_path, changed(run, at, token_ids=[token + 1]), tiny) == 1
    error = capsys.readouterr().err
    assert f"request 2, token 1 of its output: the log has {token + 1}, the engine draws {token}" in error
    landed = next(n for n in range(at, len(run)) if orjson.loads(run[n]).get("drawn") == 1)
    assert f"line {landed + 1}:" in error


async def test_another_sampling_law_draws_other_tokens(
    tmp_path: Path, run: list[bytes], tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = where(run, type="Prompt", request_id=2)
    law = {**orjson.loads(run[at])["sampling"], "seed": 8}
    assert executed(tmp_path, changed(run, at, sampling=law), tiny) == 1
    assert "request 2, token" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: renumbered([line for line in run if b'"Prompt"' not in line]), "has no token ids"),
        (lambda run: renumbered([line for line in run if b'"Drawn"' not in line]), "has no token ids"),
        (lambda run: changed(run, where(run, type="Prompt"), sampling={}), "not content of this version"),
        (lambda run: changed(run, 0, engine=None), "there was no model behind it"),
        (lambda run: changed(run, 0, engine={}), "not one of this version"),
        (lambda run: changed(run, 0, format_version=2), "event log format 2 is not 6"),
        (
            lambda run: changed(run, 0, engine={**orjson.loads(run[0])["engine"], "weights_id": "other"}),
            "written with another model",
        ),
    ],
)
async def test_logs_that_cannot_be_executed(tmp_path, run, tiny, capsys, change, message) -> None:  # type: ignore[no-untyped-def]
    assert executed(tmp_path, change(run), tiny) == 1
    assert message in capsys.readouterr().err


async def test_what_is_wrong_with_the_model_or_the_options(
    tmp_path: Path, run: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert executed(tmp_path, run, tmp_path / "missing.ninfer") == 1
    assert "missing.ninfer: No such file" in capsys.readouterr().err
    shutil.copy(__file__, tmp_path / "text.ninfer")
    assert executed(tmp_path, run, tmp_path / "text.ninfer") == 1
    assert "error:" in capsys.readouterr().err
    for wrong in (["--execute", "m", "--explain", "1"], ["--device", "cpu"], ["--execute", "m", "--device", "gpu"]):
        with pytest.raises(SystemExit):
            main([str(tmp_path / "run.log"), *wrong])


async def test_a_save_is_gone_through_and_a_restore_ends_the_execution(
    tmp_path: Path, run: list[bytes], tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run[: where(run, type="StopRequested")]
    events: list[ev.Event] = [
        ev.SlotAsked(1, 0, "save"),
        ev.SlotDone(1, 0, True),
        ev.SlotAsked(2, 0, "restore", tokens=70, blocks=("a",)),
        ev.Tick(),
    ]
    log = appended(lines, events)
    assert b"ReadSession" in b"".join(log)
    assert executed(tmp_path, log, tiny) == 0
    line = where(log, type="SlotAsked", action="restore") + 1
    assert f"same up to line {line}: a slot file is restored there" in capsys.readouterr().out


async def test_a_file_of_the_disk_cache_ends_the_execution(
    tmp_path: Path, run: list[bytes], tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = orjson.loads(run[0])
    header["settings"].update(disk_bytes=100, disk_least_tokens=64)
    lines = [orjson.dumps(header) + b"\n", *run[1 : where(run, type="Arrived")]]
    events: list[ev.Event] = [
        ev.DiskFound("kv-1-1", 9, ("a",), (1,)),
        ev.Arrived(90),
        ev.Prepared(1, 70, 1, ("a",)),
        ev.DiskRead(1, True),
        ev.Tick(),
    ]
    log = appended(lines, events)
    assert executed(tmp_path, log, tiny) == 0
    line = where(log, type="DiskRead") + 1
    assert f"same up to line {line}: a file of the disk cache is read there" in capsys.readouterr().out


async def test_a_fault_and_the_reset_behind_it_are_gone_through(
    tmp_path: Path, run: list[bytes], tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = where(run, type="StopRequested")
    prompt = orjson.loads(run[where(run, type="Prompt", request_id=1)])
    number = 1 + max(orjson.loads(line).get("request_id") or 0 for line in run)
    begun: list[ev.Event] = [ev.Arrived(99), ev.Prepared(number, len(prompt["token_ids"]), 4)]
    lines = appended(run[:ends], begun, {**prompt, "request_id": number})
    step = max(orjson.loads(line).get("step") or 0 for line in lines if b'"StartChunk"' in line)
    behind: list[ev.Event] = [
        ev.StepFailed(step - 1, "broken"),
        ev.StepFailed(step, "void"),
        ev.EngineReset(),
        ev.Released(number),
    ]
    again: list[ev.Event] = [ev.Arrived(100), ev.Prepared(number + 1, len(prompt["token_ids"]), 4)]
    lines = appended(appended(lines, behind), again, {**prompt, "request_id": number + 1})
    assert executed(tmp_path, lines, tiny) == 0
    assert "same" in capsys.readouterr().out


class Taking(Onlooker):
    """Keeps the machine."""

    machine: Scheduler

    def scheduler(self, settings: SchedulerSettings) -> Scheduler:
        self.machine = super().scheduler(settings)
        return self.machine


def appended(
    lines: Sequence[bytes], events: Sequence[ev.Event], content: dict[str, object] | None = None
) -> list[bytes]:
    """The log with more events, and what the machine answers to them; a line of content in front of them."""
    taking = Taking()
    replay(lines, onlooker=taking)
    now = orjson.loads(lines[-1])["t"]
    made = [content] if content is not None else []
    for event in events:
        now += 0.001
        commands: list[cmd.Command] = taking.machine.handle(event, now)
        made += [{"event": "event", "t": now, **to_record(event)}]
        made += [{"event": "command", "t": now, **to_record(command)} for command in commands]
    return renumbered([*lines, *(orjson.dumps(record) + b"\n" for record in made)])
