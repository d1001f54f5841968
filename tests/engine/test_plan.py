"""The memory plan: exact bytes, affine in pages, and the words of a refusal."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from ninfer.artifact.config import FULL_ATTENTION, LINEAR_ATTENTION, TextConfig
from ninfer.artifact.parameters import logical_parameters
from ninfer.artifact.recipes import recipe_for
from ninfer.artifact.synth import registered_components
from ninfer.config import EngineSettings
from ninfer.engine import available
from ninfer.engine.available import available_bytes
from ninfer.engine.device_layout import DeviceLayout
from ninfer.engine.engine import Engine
from ninfer.engine.layouts import PlainLayout
from ninfer.engine.plan import plan_memory
from ninfer.errors import StartupError
from ninfer.model.low_bit_weights import plan_weights
from ninfer.model.weights import DrafterShape
from tests.support.random_model import SMALL, TIED, RandomModel

PLENTY = 1 << 40
SETTINGS = EngineSettings(max_context_tokens=640, kv_capacity_tokens=1280, lanes=3)

# Qwen3.6-27B (model spec, sections 2 and 3).
LARGE = TextConfig(
    architectures=("Qwen3_5ForCausalLM",),
    model_type="qwen3_5_text",
    hidden_size=5120,
    vocab_size=248320,
    layer_types=tuple(LINEAR_ATTENTION if (i + 1) % 4 else FULL_ATTENTION for i in range(64)),
    max_position_embeddings=262144,
    tie_word_embeddings=False,
    rms_norm_eps=1e-6,
    heads=24,
    kv_heads=4,
    head_dim=256,
    rope_theta=1e7,
    partial_rotary_factor=0.25,
    mrope_section=(11, 11, 10),
    gdn_key_heads=16,
    gdn_value_heads=48,
    gdn_key_dim=128,
    gdn_value_dim=128,
    conv_kernel=4,
    intermediate_size=17408,
    moe=None,
)


def sizes(config: TextConfig, settings: EngineSettings) -> dict[str, int]:
    return dict(plan_memory(PlainLayout(config), settings, PLENTY).groups)


def test_figures_of_the_specs() -> None:
    """kv-and-state 9.1 and model 7.3, for the 27B with one lane in bf16."""
    settings = EngineSettings(max_context_tokens=8192, kv_capacity_tokens=8192, lanes=1, compute_dtype="bf16")
    groups = sizes(LARGE, settings)
    assert groups["kv"] == 8192 * 65536
    tables, counts, anchors = 4 * 128, 4 * 248320, 256
    assert groups["state"] == 150_994_944 + 2 * 2_949_120 + tables + counts + anchors
    assert groups["replay"] == 48 * 64 * 4 * (16 * 128 + 48 * 128 + 48)
    # All parameters of the text model in two bytes; norms, taps and recurrence constants take two more.
    parameters = 1_271_398_400 * 2 + 24_353_196_544 + 5120
    fp32 = 48 * (4 * 10240 + 48 + 48 + 128) + 16 * 2 * 256 + 129 * 5120
    aligned = 48 * 2 * (256 - 4 * 48)  # A_log and dt_bias are less than a region
    assert groups["weights"] == 2 * parameters + 2 * fp32 + aligned
    assert groups["graphs"] == 0


@pytest.mark.parametrize(
    "config", [SMALL, TIED, replace(SMALL, layer_types=(FULL_ATTENTION,) * 3)], ids=["", "tied", "kv"]
)
@pytest.mark.parametrize(("compute", "kv"), [("fp32", "fp32"), ("bf16", "bf16"), ("fp32", "bf16")])
def test_planned_bytes_are_allocated_bytes(config: TextConfig, compute: str, kv: str) -> None:
    settings = replace(SETTINGS, compute_dtype=compute, kv_dtype=kv)
    engine = Engine.load(RandomModel(config), settings, 200)
    groups = dict(engine.memory.groups)
    assert engine.allocated_bytes == sum(groups[name] for name in ("weights", "kv", "state", "replay"))
    assert engine.memory.groups == plan_memory(PlainLayout(config), settings, PLENTY).groups


def test_plan_is_affine_in_pages() -> None:
    per_page = 2 * 2 * 64 * 16 * 2
    required = [
        plan_memory(PlainLayout(SMALL), replace(SETTINGS, kv_capacity_tokens=64 * pages), PLENTY).required
        for pages in range(10, 31)
    ]
    assert {after - before for before, after in pairwise(required)} == {per_page}


def test_a_stated_capacity_is_rounded_up_to_pages_and_never_lowered() -> None:
    plan = plan_memory(PlainLayout(SMALL), replace(SETTINGS, kv_capacity_tokens=1281), 1)
    assert (plan.pages, plan.kv_capacity_tokens, plan.max_pages) == (21, 1344, 30)
    assert not plan.fits


def test_refusal_is_exact() -> None:
    plan = plan_memory(PlainLayout(SMALL), SETTINGS, PLENTY)
    plan.require()
    exact = plan_memory(PlainLayout(SMALL), SETTINGS, plan.required)
    exact.require()
    assert (exact.fits, exact.slack) == (True, 0)
    short = plan_memory(PlainLayout(SMALL), SETTINGS, plan.required - 5)
    g = dict(short.groups)
    expected = (
        f"runtime reservation requires {plan.required} bytes; {plan.required - 5} bytes are available; "
        f"short by 5 bytes (weights {g['weights']}, kv {g['kv']}, state {g['state']}, replay {g['replay']}, "
        f"workspace {g['workspace']}, graphs 0)"
    )
    assert short.refusal() == expected
    with pytest.raises(StartupError) as error:
        short.require()
    assert str(error.value) == expected
    assert sum(g.values()) == plan.required


def test_automatic_capacity_leaves_exactly_the_headroom() -> None:
    automatic = replace(SETTINGS, kv_capacity_tokens=None, kv_headroom_bytes=10_000)
    least = plan_memory(PlainLayout(SMALL), replace(SETTINGS, kv_capacity_tokens=640), PLENTY).required
    per_page = 2 * 2 * 64 * 16 * 2
    for spare, pages in ((0, 10), (per_page - 1, 10), (per_page, 11), (7 * per_page + 3, 17), (500 * per_page, 30)):
        plan = plan_memory(PlainLayout(SMALL), automatic, least + 10_000 + spare)
        assert (plan.pages, plan.fits) == (pages, True)
    short = plan_memory(PlainLayout(SMALL), automatic, least + 9_999)
    assert (short.pages, short.fits) == (10, False)
    assert short.refusal().startswith(
        f"runtime reservation requires {least} bytes beside a headroom of 10000 bytes; {least + 9_999} bytes are "
        "available; short by 1 bytes (weights "
    )
    assert plan_memory(PlainLayout(SMALL), automatic, 9_000).refusal() == (
        "a KV headroom of 10000 bytes is more than the 9000 bytes that are available"
    )


def layout_of_27b(drafter: DrafterShape | None = None) -> DeviceLayout:
    """Qwen3.8-27B as its recipe stores it, on a device of 132 multiprocessors."""
    components = registered_components("qwen3_8_27b", ("mtp", "proposal") if drafter is not None else ())
    recipe = recipe_for("qwen3_8_27b", moe=False)
    parameters = {parameter.name: parameter for parameter in logical_parameters(components)}

    class Named(RandomModel):
        def format_of(self, name: str) -> str:
            return recipe.format_of(parameters[name])

    model = Named(components.text, components.mtp, components.proposal_rows)
    return DeviceLayout(plan_weights(model, drafter), 132)  # type: ignore[arg-type]


FOUR_LANES = EngineSettings(
    device="cuda:0", max_context_tokens=172_032, kv_capacity_tokens=172_032, lanes=4, kv_dtype="int8",
    compute_dtype="bf16",
)  # fmt: skip


def test_four_long_sequences_of_the_27b_fit_on_a_card_of_24_gib() -> None:
    """172,032 int8 tokens for all, shared by four lanes."""
    plan_memory(layout_of_27b(), FOUR_LANES, 24 << 30).require()


def test_what_three_guesses_cost_the_27b_on_four_lanes() -> None:
    plain = plan_memory(layout_of_27b(), FOUR_LANES, PLENTY)
    settings = replace(FOUR_LANES, drafter="mtp", draft_tokens=3, draft_head=True)
    guessing = plan_memory(layout_of_27b(DrafterShape(131_072)), settings, PLENTY)
    before = dict(plain.groups)
    added = {name: size - before[name] for name, size in guessing.groups}
    # Keys and values of 64 positions and four heads of 256 int8 columns, with a scale of two bytes for 64 of them.
    layer_page = 2 * 64 * 4 * (256 + 4 * 2)
    assert before["kv"] == 2688 * 16 * layer_page
    assert added["kv"] == 2688 * layer_page + 17 * layer_page, "a seventeenth layer, and a page that belongs to nobody"
    assert added == {
        "weights": 808_359_936,  # a layer, the join, and a short head of 131,072 rows
        "kv": 365_629_440,
        # Masks behind each guess, hidden states that wait, and a page more in every table, in regions of 256 bytes.
        "state": 4 * 3 * 248_320 // 8 + 4 * 4 * 5120 * 2 + 256,
        "replay": 0,
        "workspace": 182_603_264,
        "graphs": 3 * before["graphs"],
    }
    assert guessing.required - plain.required == 1_407_460_864


def test_without_attention_layers_pages_cost_nothing() -> None:
    config = replace(SMALL, layer_types=(LINEAR_ATTENTION,) * 2)
    plan = plan_memory(PlainLayout(config), replace(SETTINGS, kv_capacity_tokens=None), PLENTY)
    assert (plan.pages, dict(plan.groups)["kv"]) == (30, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lanes": 0}, "0 lanes: there must be 1 to 8"),
        ({"lanes": 9}, "9 lanes: there must be 1 to 8"),
        ({"kv_capacity_tokens": 639}, "a KV capacity of 639 tokens is less than the context of 640"),
        ({"kv_capacity_tokens": 1921}, "is 31 pages; 3 lanes of 640 tokens need 10 to 30"),
        ({"max_context_tokens": 4097}, "a context of 4097 tokens: the model allows 1 to 4096"),
        ({"max_context_tokens": 64, "kv_capacity_tokens": 64}, "is 1 pages; 3 lanes of 64 tokens need 3 to 3"),
        ({"prefill_chunk_tokens": 100}, "a prefill chunk of 100 tokens: it must be a positive multiple of 64"),
        ({"prefill_chunk_tokens": 0}, "a prefill chunk of 0 tokens"),
        ({"kv_dtype": "int8"}, "KV dtype 'int8' is not built for this device: use bf16 or fp32"),
        ({"compute_dtype": "fp16"}, "compute dtype 'fp16' is not built"),
    ],
)
def test_contradictory_settings(changes: dict[str, int], message: str) -> None:
    with pytest.raises(StartupError, match=message.replace("(", "\\(")):
        plan_memory(PlainLayout(SMALL), replace(SETTINGS, **changes), PLENTY)


def test_table_shows_every_group_and_the_capacity() -> None:
    plan = plan_memory(PlainLayout(SMALL), SETTINGS, PLENTY)
    lines = plan.table().splitlines()
    assert len(lines) == 1 + 6 + 3 + 1
    for name, size in plan.groups:
        assert any(line.split()[:2] == [name, f"{size:,}"] for line in lines)
    assert lines[-1] == "20 pages of 64 tokens = 1280 tokens of attention cache, longest sequence 640"


def test_load_refuses_before_it_loads() -> None:
    class Unreadable(RandomModel):
        def values(self, name: str, rows: tuple[int, int] | None = None) -> None:  # type: ignore[override]
            raise AssertionError("loaded although the plan does not fit")

    with pytest.raises(StartupError, match="runtime reservation requires"):
        Engine.load(Unreadable(), replace(SETTINGS, device_memory_limit_bytes=100_000), 200)


def test_available_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo, limit, used = tmp_path / "meminfo", tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(available, "_MEMINFO", meminfo)
    monkeypatch.setattr(available, "_CGROUP_LIMIT", limit)
    monkeypatch.setattr(available, "_CGROUP_USED", used)
    cpu = torch.device("cpu")
    with pytest.raises(StartupError, match="cannot read"):
        available_bytes(cpu, None)
    meminfo.write_text("MemTotal: 9 kB\n")
    with pytest.raises(StartupError, match="no MemAvailable"):
        available_bytes(cpu, None)
    meminfo.write_text("MemTotal:  99 kB\nMemAvailable:   10 kB\n")
    assert available_bytes(cpu, None) == 10240
    assert available_bytes(cpu, None, resident=60) == 10300
    assert available_bytes(cpu, 4000, resident=60) == 4000
    limit.write_text("max\n")
    assert available_bytes(cpu, None) == 10240
    limit.write_text("5000\n")
    used.write_text("1000\n")
    assert available_bytes(cpu, None) == 4000
    used.write_text("6000\n")
    assert available_bytes(cpu, None) == 0
