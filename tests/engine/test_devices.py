"""What is decided about a device before an engine is built on it."""

from __future__ import annotations

import logging

import pytest
import torch

from ninfer.engine.devices import chunk_policy, gpu_identity, gpu_name
from ninfer.kernels.low_bit_linear.chunk_route import DEFAULT, Choice, Policy


@pytest.mark.parametrize(
    ("choice", "says"), [("auto", "by the library"), ("in-register", "in registers up to 64 tokens")]
)
def test_a_gpu_that_was_not_measured_is_named_once(choice: str, says: str, caplog: pytest.LogCaptureFixture) -> None:
    assert chunk_policy(choice, "Abacus 1") == Policy(Choice(choice), DEFAULT)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == f"Products of short chunks were not measured on Abacus 1: they are made {says}"


@pytest.mark.parametrize(("choice", "gpu"), [("library", "Abacus 1"), ("auto", None), ("in-register", None)])
def test_nothing_is_said_where_it_makes_no_difference(
    choice: str, gpu: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert chunk_policy(choice, gpu) == Policy(Choice(choice), DEFAULT)
    assert not caplog.records


def test_the_processor_has_no_name() -> None:
    assert gpu_identity(torch.device("cpu")) is None
    assert gpu_name(torch.device("cpu")) is None
