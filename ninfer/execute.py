"""The engine once more, behind the commands of a log: whether it draws the tokens that the log has.

Steps are launched in the order of their commands and waited for when the log says that they landed, as they were.
Tokens are compared when a step lands: what the log has of it was written before that. What was drawn between a fault
and the reset that follows it counts for nothing and is not compared.

Guesses change no token but how many a round draws. So a round with guesses is launched only when it lands, and what is
guessed are the tokens that the log has: the engine has to draw them all again, whatever it would have guessed itself.
"""

from __future__ import annotations

import base64
import zlib
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ninfer.actors.engine import EngineLike, Pending
from ninfer.artifact.container import Artifact
from ninfer.config import EngineSettings, Settings
from ninfer.engine.devices import with_device
from ninfer.errors import DeviceFault
from ninfer.replay import Onlooker, ReplayDiffers
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.records import BadRecord, EngineRecord, build
from ninfer.served import ArtifactBuilder, open_served
from ninfer.step import PAGE_TOKENS, DecodeResult, DecodeRound, DecodeRow, Drawn, LaneSetup, NextPart, PrefillChunk
from ninfer.types import Sampling

_Started = cmd.StartChunk | cmd.ContinueChunk | cmd.StartRound
NO_MASK: tuple[None, tuple[bytes, ...]] = (None, ())
NO_CONTENT = "it has no token ids (write it with ninfer-serve --event-log FILE --log-content)"


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine, and the device that it runs on."""

    engine: EngineLike
    device: str


class Model:
    """The artifact that a log is to be executed with."""

    def __init__(self, artifact: Artifact, path: Path, device: str | None) -> None:
        served = open_served(artifact, Settings(path))
        self._bound, self._device = served.bound, device
        self._public_ids = served.model.tokenizer.id_count
        self._artifact_id = artifact.artifact_id

    def load(self, logged: EngineRecord, pages: int) -> Loaded:
        """The engine of a log, with so many pages.

        raises ReplayDiffers for another model, StartupError or ArtifactError for one that cannot be loaded
        """
        ours = (self._artifact_id, self._bound.target, self._bound.weights_id)
        theirs = (logged.artifact_id, logged.target, logged.weights_id)
        if ours != theirs:
            raise ReplayDiffers(f"it was written with another model: {' '.join(theirs)}, this is {' '.join(ours)}")
        settings = self._settings(logged.settings, pages)
        engine, _check = ArtifactBuilder(self._bound, settings, self._public_ids).load()
        return Loaded(engine, settings.device)

    def _settings(self, logged: EngineSettings, pages: int) -> EngineSettings:
        # Nothing is guessed here: see above.
        settings = replace(logged, drafter=None, draft_head=False)
        settings = replace(settings, kv_capacity_tokens=pages * PAGE_TOKENS, device_memory_limit_bytes=None)
        device = self._device if self._device is not None else logged.device
        if device != logged.device:
            settings = replace(settings, device=device, compute_dtype=EngineSettings().compute_dtype)
        return with_device(settings)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a lane is set up with."""

    token_ids: tuple[int, ...]
    sampling: Sampling
    stop_ids: tuple[int, ...]


class Executor(Onlooker):
    """Runs the engine of a `model` behind a replay.

    tokens, steps   that have been compared and launched
    stopped_at      line at which the execution cannot go on, and why
    """

    def __init__(self, model: Model) -> None:
        self.tokens = 0
        self.steps = 0
        self.loaded: Loaded | None = None
        self.logged: EngineRecord | None = None
        self.stopped_at: tuple[int, str] | None = None
        self._model = model
        self._prompts: dict[int, Prompt] = {}
        self._masks: dict[int, tuple[bytes | None, tuple[bytes, ...]]] = {}
        self._logged: defaultdict[int, deque[int]] = defaultdict(deque)
        self._drawn: defaultdict[int, int] = defaultdict(int)
        # A round with guesses waits for its tokens.
        self._flight: deque[tuple[_Started, Pending[Any] | None]] = deque()
        self._void = False  # between a fault and the reset

    @property
    def has_seen_all(self) -> bool:
        """Whether nothing more can be executed."""
        return self.stopped_at is not None

    def opened(self, header: Mapping[str, Any]) -> None:
        """Take the engine's settings."""
        try:
            record = header["engine"]
            self.logged = build(EngineRecord, record) if record is not None else None
        except (BadRecord, KeyError, TypeError) as error:
            raise ReplayDiffers(f"the engine of this log is not one of this version: {error}") from None
        if self.logged is None:
            raise ReplayDiffers("there was no model behind it, so there is nothing to execute")

    def content(self, number: int, record: Mapping[str, Any]) -> None:
        """Remember a prompt, a mask, or what was drawn."""
        try:
            if record["type"] == "Mask":
                packed = record["mask"]
                mask = _unpacked(packed) if packed is not None else None
                self._masks[record["request_id"]] = mask, tuple(_unpacked(each) for each in record["ahead"])
                return
            request_id, ids = record["request_id"], tuple(record["token_ids"])
            if record["type"] == "Prompt":
                sampling = build(Sampling, record["sampling"])
                self._prompts[request_id] = Prompt(ids, sampling, tuple(record["stop_ids"]))
            else:
                self._logged[request_id].extend(ids)
        except (BadRecord, KeyError, TypeError, ValueError, zlib.error) as error:
            raise ReplayDiffers(f"line {number}: not content of this version: {error}") from None

    def decided(self, number: int, now: float, event: ev.Event, commands: Sequence[cmd.Command]) -> None:
        """Land what landed, then launch what is launched."""
        match event:
            case ev.ModelLoaded():
                assert self.logged is not None, "the first line has been read"
                self.loaded = self._model.load(self.logged, event.pages)
            case ev.PartLanded():
                self._land_part(number)
            case ev.ChunkLanded():
                self._land_chunk(number, event)
            case ev.RoundLanded():
                self._land_round(number, event)
            case ev.StepFailed():
                self._flight.popleft()
                self._void = True
            case ev.EngineReset():
                self._engine.reset()
                self._void = False
            case ev.Released():
                self._prompts.pop(event.request_id, None)
                self._masks.pop(event.request_id, None)
        for command in commands:
            self._obey(number, command)

    @property
    def _engine(self) -> EngineLike:
        assert self.loaded is not None, "the machine gives no step before the model is loaded"
        return self.loaded.engine

    def _obey(self, number: int, command: cmd.Command) -> None:
        match command:
            case cmd.StartChunk():
                self._flight.append((command, self._engine.launch(self._chunk(number, command))))
                self.steps += 1
            case cmd.ContinueChunk():
                self._flight.append((command, self._engine.launch(NextPart(command.lane))))
                self.steps += 1
            case cmd.StartRound():
                guessing = any(row.drafts or row.copies for row in command.rows)
                self._flight.append((command, None if guessing else self._launch_round(command, {})))
                self.steps += 1
            case cmd.ReadSession():
                self._finish_flight(number)
                self._engine.transfer(command.before)
                if command.capture:
                    self._engine.capture(command.lane, command.image)
            case cmd.SaveEvicted():
                self._obey(number, command.read)
            case cmd.WriteSession():
                self.stopped_at = number, "a slot file is restored there, and what is in it is not in the log"
            case cmd.WriteDisk():
                self.stopped_at = number, "a file of the disk cache is read there, and what is in it is not in the log"

    def _launch_round(self, command: cmd.StartRound, guesses: Mapping[int, tuple[int, ...]]) -> Pending[DecodeResult]:
        """With these guesses by request."""
        rows = []
        for row in command.rows:
            copied = guesses.get(row.request_id)
            drafts = len(copied) if copied is not None else 0
            mask, ahead = self._masks.get(row.request_id, NO_MASK)
            # Where no masks behind guesses were made it was the same behind all tokens but the last.
            behind = (ahead or (mask,) * drafts)[:drafts] if mask is not None else ()
            rows.append(DecodeRow(row.lane, row.position, row.mapping, mask, drafts, copied, behind))
        return self._engine.launch(DecodeRound(tuple(rows), command.before))

    def _chunk(self, number: int, command: cmd.StartChunk) -> PrefillChunk:
        prompt = self._prompts.get(command.request_id)
        if prompt is None:
            raise ReplayDiffers(NO_CONTENT)
        return PrefillChunk(
            lane=command.lane,
            begin=command.begin,
            token_ids=prompt.token_ids[command.begin : command.end],
            mapping=command.mapping,
            setup=LaneSetup(prompt.sampling, prompt.stop_ids, prompt.token_ids) if command.first else None,
            sample=command.sample,
            before=command.before,
            after=command.after,
            mask=self._masks.get(command.request_id, NO_MASK)[0] if command.sample else None,
            parts=command.parts,
        )

    def _finish_flight(self, number: int) -> None:
        """Wait for everything in flight, and keep what came of it until it lands."""
        for _ in range(len(self._flight)):
            command, pending = self._flight.popleft()
            done = _Result(_outcome(number, pending)) if pending is not None else None
            self._flight.append((command, done))

    def _land_part(self, number: int) -> None:
        _command, pending = self._flight.popleft()
        assert pending is not None, "only rounds wait"
        _outcome(number, pending)

    def _land_chunk(self, number: int, event: ev.ChunkLanded) -> None:
        command, pending = self._flight.popleft()
        assert not isinstance(command, cmd.StartRound), "the machine has checked that"
        assert pending is not None, "only rounds wait"
        drawn: Drawn | None = _outcome(number, pending).drawn
        if drawn is not None:
            self._compare(number, command.request_id, drawn, event.drawn, event.stopped)

    def _land_round(self, number: int, event: ev.RoundLanded) -> None:
        command, pending = self._flight.popleft()
        assert isinstance(command, cmd.StartRound), "the machine has checked that"
        if pending is None:
            # The last token that a row draws is what comes of its guesses, and none of them.
            guesses = {row.request_id: self._next(row.request_id, row.drawn)[:-1] for row in event.rows}
            pending = self._launch_round(command, guesses)
        for row, drawn in zip(event.rows, _outcome(number, pending).drawn, strict=True):
            self._compare(number, row.request_id, drawn, row.drawn, row.stopped)

    def _next(self, request_id: int, count: int) -> tuple[int, ...]:
        """What the log has next of a request's output."""
        logged = self._logged[request_id]
        if len(logged) < count:
            raise ReplayDiffers(NO_CONTENT)
        return tuple(islice(logged, count))

    def _compare(self, number: int, request_id: int, drawn: Drawn, count: int, stopped: bool) -> None:
        expected = self._next(request_id, count)
        for _ in expected:
            self._logged[request_id].popleft()
        if self._void:
            return
        if (expected, stopped) != (drawn.token_ids, drawn.stopped):
            at = self._drawn[request_id] + 1
            has, draws = _told(expected, stopped), _told(drawn.token_ids, drawn.stopped)
            where = f"line {number}: request {request_id}, token {at} of its output"
            raise ReplayDiffers(f"{where}: the log has {has}, the engine draws {draws}")
        self._drawn[request_id] += count
        self.tokens += count


@dataclass(frozen=True, slots=True)
class _Result:
    """A step that has been waited for."""

    result: Any

    def wait(self) -> Any:
        return self.result


def _outcome(number: int, pending: Pending[Any]) -> Any:
    try:
        return pending.wait()
    except DeviceFault as error:
        raise ReplayDiffers(f"line {number}: the step that landed there fails now: {error}") from None


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text, validate=True))


def _told(ids: Sequence[int], stopped: bool) -> str:
    return " ".join(str(token) for token in ids) + (" (a stop token)" if stopped else "")
