"""Which way the products of a chunk go, and what is known of a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ninfer.kernels.low_bit_linear import tuned as tuned_folder
from ninfer.kernels.low_bit_linear.chunk_route import (
    DEFAULT,
    Choice,
    Policy,
    Route,
    Tuned,
    file_name,
    route,
    to_json,
    tuned_for,
    warm_up_lengths,
)
from ninfer.kernels.low_bit_linear.variants import CHUNK_TOKENS, chunk_tile

SAME = Tuned(True, ((0, 48), (8192, 200)))
OTHER = Tuned(False, ((0, 48), (8192, 200)))


@pytest.mark.parametrize(
    ("choice", "tuned", "in_registers"),
    [
        (Choice.AUTO, SAME, True),
        (Choice.AUTO, OTHER, False),
        (Choice.AUTO, DEFAULT, False),
        (Choice.IN_REGISTER, SAME, True),
        (Choice.IN_REGISTER, OTHER, True),
        (Choice.IN_REGISTER, DEFAULT, True),
        (Choice.LIBRARY, SAME, False),
        (Choice.LIBRARY, OTHER, False),
    ],
)
def test_other_bits_have_to_be_asked_for(choice: Choice, tuned: Tuned, in_registers: bool) -> None:
    policy = Policy(choice, tuned)
    assert policy.in_registers is in_registers
    assert (route(1, 5120, 5120, policy) is Route.IN_REGISTER) is in_registers
    assert bool(warm_up_lengths(policy)) is in_registers


@pytest.mark.parametrize(("rows", "longest"), [(64, 48), (8184, 48), (8192, 200), (34816, 200)])
def test_the_length_from_which_the_library_is_faster_goes_by_rows(rows: int, longest: int) -> None:
    policy = Policy(Choice.AUTO, SAME)
    assert route(longest, rows, 5120, policy) is Route.IN_REGISTER
    assert route(longest + 1, rows, 5120, policy) is Route.LIBRARY


def test_a_shape_that_the_kernel_lacks_goes_to_the_library() -> None:
    policy = Policy(Choice.IN_REGISTER, SAME)
    assert route(8, 64, 320, policy) is Route.IN_REGISTER
    assert route(8, 64, 328, policy) is Route.LIBRARY
    assert route(8, 68, 320, policy) is Route.LIBRARY


def test_nothing_is_asked_for_unless_somebody_says_so() -> None:
    assert Policy() == Policy(Choice.AUTO, DEFAULT)
    assert not Policy().in_registers


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
@pytest.mark.parametrize("tuned", [SAME, DEFAULT, Tuned(True, ((0, 20),)), Tuned(True, ((0, 0), (1024, 300)))], ids=str)
def test_the_warm_up_launches_every_binary_that_a_chunk_can(capability: int, tuned: Tuned) -> None:
    policy = Policy(Choice.IN_REGISTER, tuned)

    def binaries(lengths: tuple[int, ...]) -> set[object]:
        return {
            (row_tiles, chunk_tile(capability, 132, row_tiles, 5120, tokens))
            for row_tiles in (64, 2176)
            for tokens in lengths
            if route(tokens, 16 * row_tiles, 5120, policy) is Route.IN_REGISTER
        }

    assert binaries(warm_up_lengths(policy)) == binaries(tuple(range(1, 400)))
    assert set(warm_up_lengths(policy)) <= {*CHUNK_TOKENS, *(tokens for _, tokens in tuned.longest_tokens)}


def test_an_entry_is_found_by_the_name_of_its_gpu(tmp_path: Path) -> None:
    assert file_name("NVIDIA GeForce RTX 4090 (24 GB)") == "nvidia-geforce-rtx-4090-24-gb.json"
    assert tuned_for("NVIDIA H200", tmp_path) is None
    (tmp_path / file_name("NVIDIA H100 PCIe")).write_text(json.dumps({"chunk_products": to_json(SAME)}))
    assert tuned_for("NVIDIA H100 PCIe", tmp_path) == SAME


@pytest.mark.parametrize(
    "pairs", [[], [[64, 10]], [[0, 10], [0, 20]], [[0, 10], [64, 5], [32, 5]]], ids=str
)  # fmt: skip
def test_a_wrong_entry_is_refused(pairs: list[list[int]], tmp_path: Path) -> None:
    entry = {"chunk_products": {"same_bits": True, "longest_tokens": pairs}}
    (tmp_path / file_name("a")).write_text(json.dumps(entry))
    with pytest.raises(ValueError, match="not an entry"):
        tuned_for("a", tmp_path)


def test_all_entries_can_be_read() -> None:
    folder = Path(str(tuned_folder.__file__)).parent
    for path in folder.glob("*.json"):
        assert tuned_for(path.stem) is not None, path.name
