"""The artifact as the server uses it: opened and read for its text parts early, loaded onto the device later."""

from __future__ import annotations

import gc
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from ninfer.actors.engine import EngineBuilder, EngineLike, MemoryCheck
from ninfer.actors.slots import SlotFolder
from ninfer.api.preparation import Model
from ninfer.api.presets import presets_for
from ninfer.artifact.binder import BoundArtifact
from ninfer.artifact.config import LINEAR_ATTENTION, TextConfig
from ninfer.artifact.container import Artifact
from ninfer.config import MIB, EngineSettings, Settings
from ninfer.constraints.compiler import Compiler
from ninfer.engine.available import available_bytes
from ninfer.engine.devices import gpu_identity
from ninfer.engine.layouts import Specs
from ninfer.engine.loading import bind_for, layout_of, load_engine
from ninfer.engine.plan import MemoryPlan, plan_memory
from ninfer.engine.scripted import Script, ScriptedEngine, read_script
from ninfer.errors import StartupError
from ninfer.model.arena import ITEM_BYTES
from ninfer.model.cache import kv_specs
from ninfer.model.device_cache import kv_specs as device_kv_specs
from ninfer.options import KV_DTYPES
from ninfer.snapshots.format import DRAFTERS, KV_FORMATS, MAX_RING_ENTRIES, SnapshotConfig
from ninfer.snapshots.reader import Limits
from ninfer.text.template import ChatTemplate, builtin_source, template_source
from ninfer.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Served:
    """An open artifact and what the HTTP side needs of it."""

    bound: BoundArtifact
    model: Model


def open_served(artifact: Artifact, settings: Settings) -> Served:
    """Bind the text component and read its frontend files; raises ArtifactError or StartupError."""
    bound = bind_for(artifact, settings.engine)
    tokenizer = Tokenizer.from_resources(
        bound.resource("text", "tokenizer.json"),
        bound.optional_resource("text", "tokenizer_config.json"),
        bound.optional_resource("text", "generation_config.json"),
    )
    source = _template(bound, settings.chat_template)
    model = Model(
        public_id=settings.http.model_id or bound.name or bound.text.architectures[0],
        max_context_tokens=settings.engine.max_context_tokens,
        tokenizer=tokenizer,
        template=ChatTemplate(source, tuple(tokenizer.control_ids)),
        presets=presets_for(bound.target, _generation_config(bound)),
        compiler=Compiler(tokenizer),
        enforces=settings.script is None,
    )
    return Served(bound, model)


def _generation_config(bound: BoundArtifact) -> Mapping[str, object]:
    resource = bound.optional_resource("text", "generation_config.json")
    if resource is None:
        return {}
    value = json.loads(resource)  # the tokenizer has checked that it is an object
    assert isinstance(value, dict)
    return value


def _template(bound: BoundArtifact, file: Path | None) -> str:
    if file is not None:
        try:
            return template_source(file.read_bytes())
        except OSError as error:
            raise StartupError(f"--chat-template {file} cannot be read: {error.strerror}") from None
    resource = bound.optional_resource("text", "chat_template.jinja")
    return template_source(resource) if resource is not None else builtin_source("qwen3_8")


def environment_of(device: str) -> dict[str, object]:
    """What a process runs on: versions, and the GPU if `device` is one, which has to be set up (serving spec, 16.4)."""
    gpu = gpu_identity(torch.device(device))
    major, minor = gpu.capability if gpu is not None else (None, None)
    return {
        "device": device,
        "gpu_name": gpu.name if gpu is not None else None,
        "gpu_uuid": gpu.uuid if gpu is not None else None,
        "total_device_memory_bytes": gpu.memory_bytes if gpu is not None else None,
        "compute_capability_major": major,
        "compute_capability_minor": minor,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda_runtime": torch.version.cuda,
    }


def settle_memory() -> None:
    """Collect once, and let later collections pass over everything that loading has left; for a process that serves.

    The objects of the libraries live as long as the process. A full collection visits them all, in about 90 ms, and
    holds up every stream and the event loop meanwhile.
    """
    gc.collect()
    gc.freeze()


def with_host_pages(settings: Settings, served: Served) -> Settings:
    """With the number of pages that the cache in host memory has room for; raises StartupError where that has none."""
    budget = settings.engine.host_kv_cache_bytes
    free = available_bytes(torch.device("cpu"), None) if budget and settings.script is None else budget
    if budget > free:
        raise StartupError(f"--host-kv-cache-mib {budget // MIB}: {free // MIB} MiB of host memory are free")
    specs = _page_specs(served.bound.text, settings.engine)
    page_bytes = sum(math.prod(spec.shape) * ITEM_BYTES[spec.dtype] for spec in specs)
    pages = budget // page_bytes if page_bytes else 0
    return replace(
        settings,
        engine=replace(settings.engine, host_pages=pages),
        scheduler=replace(settings.scheduler, host_pages=pages),
    )


def _page_specs(config: TextConfig, settings: EngineSettings) -> Specs:
    """The planes of one page."""
    if settings.device == "cpu":
        return kv_specs(config, 1, settings.kv_dtype, drafter=settings.drafter is not None)
    return device_kv_specs(config, 1, settings.kv_dtype, drafter=settings.drafter is not None)


def slot_folder(served: Served, settings: Settings) -> SlotFolder | None:
    """Where sessions are saved, if anywhere, and what a file must have in common with this server."""
    if settings.slot_folder is None:
        return None
    return _folder(served, settings, settings.slot_folder, settings.scheduler.turn_checkpoints)


def disk_folder(served: Served, settings: Settings) -> SlotFolder | None:
    """The same of the disk cache. Any state of a file may be the one that is wanted."""
    if settings.disk_folder is None:
        return None
    return _folder(served, settings, settings.disk_folder, MAX_RING_ENTRIES)


def _folder(served: Served, settings: Settings, folder: Path, states: int) -> SlotFolder:
    bound, scheduler = served.bound, settings.scheduler
    config = bound.text
    planes = len(_page_specs(config, settings.engine))
    kv_dtype, quant_group, kv_flags = KV_FORMATS[settings.engine.kv_dtype]
    layers = config.layer_types.count(LINEAR_ATTENTION)
    recurrent = layers * config.gdn_value_heads * config.gdn_value_dim * config.gdn_key_dim * ITEM_BYTES["fp32"]

    def snapshot_config(engine: EngineLike) -> SnapshotConfig:
        return SnapshotConfig(
            target=bound.target,
            model_id=served.model.public_id,
            weights_id=bound.weights_id,
            artifact_id=bound.artifact.artifact_id,
            kv_dtype=kv_dtype,
            quant_group=quant_group,
            kv_flags=kv_flags,
            gdn_layers=layers,
            conv_slot_bytes=max(0, engine.image_bytes - recurrent),
            recurrent_slot_bytes=min(recurrent, engine.image_bytes),
            text_planes=planes,
            text_page_bytes=engine.page_bytes,
            spec_backend=DRAFTERS[settings.engine.drafter],
        )

    limits = Limits(scheduler.max_context_tokens, served.model.tokenizer.id_count, states)
    return SlotFolder(folder, snapshot_config, limits)


class Builder(EngineBuilder, Protocol):
    """A builder that remembers its last plan, for the console and the request log."""

    @property
    def memory(self) -> MemoryPlan | None: ...


def builder_of(served: Served, settings: Settings) -> Builder:
    """The builder of the engine that the settings name; raises StartupError for a script that cannot be used."""
    tokenizer = served.model.tokenizer
    if settings.script is None:
        return ArtifactBuilder(served.bound, settings.engine, tokenizer.id_count)
    script = Script(read_script(settings.script), tokenizer)
    journal = settings.script.with_name(f"{settings.script.name}.log")
    return ScriptedBuilder(ScriptedEngine(script, journal, settings.engine.lanes), served.bound.text, settings.engine)


class ArtifactBuilder:
    """Plans and loads the engine of a bound artifact. Its methods block and run on the device thread.

    memory   the last plan that was made, for the console and the request log
    """

    def __init__(self, bound: BoundArtifact, settings: EngineSettings, public_ids: int) -> None:
        self._bound = bound
        self._settings = settings
        self._public_ids = public_ids
        self.memory: MemoryPlan | None = None

    def plan(self) -> MemoryCheck:
        """The early plan; raises StartupError when it does not fit."""
        settings, bound = self._settings, self._bound
        layout = layout_of(bound, settings)  # first: it says what is wrong with the device
        free = available_bytes(torch.device(settings.device), settings.device_memory_limit_bytes)
        return self._note(plan_memory(layout, settings, free))

    def load(self) -> tuple[EngineLike, MemoryCheck]:
        """Weights and pools onto the device; raises StartupError or ArtifactError."""
        engine = load_engine(self._bound, self._settings, self._public_ids)
        return engine, self._note(engine.memory)

    def _note(self, plan: MemoryPlan) -> MemoryCheck:
        self.memory = plan
        return _check(plan)


class _NoMemory:
    """Layout of an engine that allocates nothing."""

    kv_dtypes = KV_DTYPES
    compute_dtypes = ("bf16", "fp32")

    def __init__(self, config: TextConfig) -> None:
        self.config = config

    def weights(self, settings: EngineSettings) -> Specs:
        return ()

    def kv(self, settings: EngineSettings, pages: int) -> Specs:
        return ()

    def state(self, settings: EngineSettings) -> Specs:
        return ()

    def open_rows(self, settings: EngineSettings) -> Specs:
        return ()

    def workspace_bytes(self, settings: EngineSettings) -> int:
        return 0

    def graph_bytes(self, settings: EngineSettings) -> int:
        return 0


class ScriptedBuilder:
    """Hands out the scripted engine, with the pages that the settings ask for; an automatic capacity is the largest."""

    def __init__(self, engine: ScriptedEngine, config: TextConfig, settings: EngineSettings) -> None:
        self._engine = engine
        self._config = config
        self._settings = replace(settings, kv_headroom_bytes=0)
        self.memory: MemoryPlan | None = None

    def plan(self) -> MemoryCheck:
        """Pages, and not a byte; raises StartupError for settings that contradict each other or the model."""
        self.memory = plan_memory(_NoMemory(self._config), self._settings, available=0)
        return _check(self.memory)

    def load(self) -> tuple[EngineLike, MemoryCheck]:
        """The engine, which is there already."""
        return self._engine, self.plan()


def _check(plan: MemoryPlan) -> MemoryCheck:
    return MemoryCheck(plan.required + plan.headroom, plan.available, plan.pages, plan.refusal())
