"""The training loop at toy size: packing, loss targets, resuming, schedule."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from ninfer.embedded.generate.prose import story
from ninfer.embedded.training.delta_rule import chunked
from ninfer.embedded.training.dimensions import Dimensions
from ninfer.embedded.training.loss import Targets
from ninfer.embedded.training.network import Network, Routes
from ninfer.embedded.training.optimiser import orthogonalised
from ninfer.embedded.training.packed_attention import masked
from ninfer.embedded.training.packing import Block, Packer
from ninfer.embedded.training.ranking import count_written
from ninfer.embedded.training.schedule import LENGTHS, rate, rounding, row_length
from ninfer.embedded.training.train import Progress, Trainer, restore, save
from ninfer.embedded.training.vocabulary import frontend, load_frontend, tokenise, train_bpe

TOY = Dimensions(
    vocabulary=448, hidden=64, layers=4, intermediate=64, heads=1, head_dim=64, key_heads=1, value_heads=1, gdn_dim=64
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("frontend")
    texts = ["The access code of Ada is 123.\n\nWhat is the home town of Boris?\n", story(Random(0), 3)]
    for role, content in frontend(*train_bpe(texts, 330)).items():
        (path / role).write_bytes(content)
    tokenizer, _ = load_frontend(path)
    np.save(path / "corpus.npy", tokenise(tokenizer, ["Some text about a cat.\nAnd a line.\n" * 400] * 4))
    return path


@pytest.fixture(scope="module")
def block(directory: Path) -> Block:
    return Packer(directory, "seed", 2048).block(1)


def trainer(seed: int) -> Trainer:
    torch.manual_seed(seed)
    return Trainer(Network(TOY), Routes(chunked, masked), 2048, torch.device("cpu"), compiled=False)


def test_rows_are_full_of_whole_documents(block: Block):
    assert block.ids.shape == block.positions.shape == block.weights.shape == (1, 2048)
    for positions in block.positions.astype(int):
        assert positions[0] == 0
        steps = np.diff(positions)
        assert ((steps == 1) | (positions[1:] == 0)).all()


def test_the_same_seed_packs_the_same_rows(directory: Path, block: Block):
    again = Packer(directory, "seed", 2048).block(1)
    assert (again.ids == block.ids).all()
    other = Packer(directory, "other seed", 2048).block(1)
    assert (other.ids != block.ids).any()


def test_targets_stay_within_their_document():
    positions = torch.tensor([0, 1, 2, 0, 1, 0])
    ids, weights = torch.arange(10, 16), torch.tensor([1.0, 2, 3, 4, 5, 6])
    near = Targets.ahead(ids, positions, weights, 1)
    assert near.weights.tolist() == [2, 3, 0, 5, 0, 0]
    assert near.ids.tolist()[:2] == [11, 12]
    far = Targets.ahead(ids, positions, weights, 2)
    assert far.weights.tolist() == [3, 0, 0, 0, 0, 0]


def test_steps_lower_the_loss(block: Block):
    pupil = trainer(0)
    first = pupil.step([block], 0.1)
    for _ in range(5):
        last = pupil.step([block], 1.0)
    assert last[0] < first[0] - 0.5
    assert last[2] < first[2] - 0.5


def test_warming_up_changes_nothing(block: Block):
    pupil, twin = trainer(1), trainer(1)
    pupil.warm_up([block])
    assert torch.equal(pupil.step([block], 1.0), twin.step([block], 1.0))


def test_a_continued_training_is_the_uninterrupted_one(block: Block, tmp_path: Path):
    whole = trainer(2)
    for _ in range(2):
        whole.step([block], 1.0)
    save(tmp_path / "state.pt", whole, Progress(12.5, 2, [{"step": 2}]))
    continued = trainer(3)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert restore(state, continued) == Progress(12.5, 2, [{"step": 2}])
    expected = whole.step([block], 0.5)
    assert torch.equal(continued.step([block], 0.5), expected)
    for a, b in zip(whole.network.parameters(), continued.network.parameters(), strict=True):
        assert torch.equal(a, b)


def test_orthogonalised_updates_have_singular_values_near_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(2, 24, 64)))
    assert (values > 0.6).all()
    assert (values < 1.3).all()


def test_the_schedule_covers_the_budget():
    assert [row_length(done) for done, _ in LENGTHS] == [length for _, length in LENGTHS]
    assert row_length(1.0) == LENGTHS[-1][1]
    assert rate(0.0) < 0.1
    assert rate(0.3) == 1.0
    assert rate(1.0) < 0.05
    assert rounding(0.5) == 0.0
    assert rounding(1.0) == 1.0


def test_ranking_counts_what_is_written_and_not_what_is_read(directory: Path):
    counts = count_written(Packer(directory, "seed", 2048), 1, 448)
    block = Packer(directory, "seed", 2048).block(1)
    assert counts.sum() == (block.weights > 3).sum()
    assert 0 < counts.sum() < block.ids.size
