"""What is counted of requests, by how and when they end."""

from __future__ import annotations

import pytest

from ninfer.actors.messages import Admitted, Finished, PrefillProgress, TextDelta, Usage
from ninfer.api.exposition import Histogram
from ninfer.api.observed import LastRequest, Observed, Outcome, Watched
from ninfer.types import FinishReason


def counted(histogram: Histogram) -> tuple[float, int]:
    """Sum and count."""
    *_, total, count = histogram.samples()
    return total.value, int(count.value)


def text(tokens: int, first_at: float | None, at: float | None) -> TextDelta:
    return TextDelta((), tokens, first_at, at)


def finished(tokens: int, first_at: float | None, last_at: float | None) -> Finished:
    return Finished(FinishReason.STOP_TOKEN, Usage(100, 64, tokens, 0), 0, 11.0, first_at, last_at)


def test_a_request_that_completes() -> None:
    observed = Observed()
    watched = Watched(observed, received_at=10.0)
    for reply in (
        Admitted(0, 64, 11.0),
        PrefillProgress(64, 100, 64, 11.0),
        PrefillProgress(100, 100, 64, 13.0),
        text(1, 13.0, 13.0),
        text(2, 13.0, 13.5),
        text(5, 13.0, 15.0),  # two tokens had no text to publish
        finished(6, 13.0, 15.25),
    ):
        watched.saw(reply)
    watched.ended(Outcome.COMPLETED, 15.5)
    assert observed.outcomes == {
        Outcome.COMPLETED: 1,
        Outcome.CANCELLED: 0,
        Outcome.FAILED: 0,
        Outcome.REJECTED: 0,
    }
    assert counted(observed.queue) == (1.0, 1)
    assert counted(observed.first_token) == (3.0, 1)
    assert counted(observed.gaps) == (2.25, 5)
    assert counted(observed.duration) == (5.5, 1)
    assert observed.last == LastRequest(6, 2.25)
    assert observed.last.inter_token_s == 0.45
    assert (observed.waiting_cancelled, observed.cancelled_prefills, observed.cancelled_prefill_tokens) == (0, 0, 0)


@pytest.mark.parametrize("tokens", [0, 1])
def test_fewer_than_two_tokens_have_no_gap(tokens: int) -> None:
    observed = Observed()
    watched = Watched(observed, received_at=10.0)
    watched.saw(Admitted(0, 0, 11.0))
    at = 12.0 if tokens else None
    watched.saw(finished(tokens, at, at))
    assert counted(observed.first_token) == ((2.0, 1) if tokens else (0.0, 0))
    assert counted(observed.gaps) == (0.0, 0)
    assert observed.last is None


@pytest.mark.parametrize(
    ("replies", "waiting", "prefills", "tokens"),
    [
        ([], 1, 0, 0),
        ([Admitted(0, 64, 11.0)], 0, 1, 0),
        ([Admitted(0, 64, 11.0), PrefillProgress(192, 300, 64, 12.0)], 0, 1, 128),
        ([Admitted(0, 64, 11.0), PrefillProgress(300, 300, 64, 12.0), text(1, 13.0, 13.0)], 0, 0, 0),
    ],
    ids=["queue", "admitted", "prefill", "decode"],
)
def test_what_a_client_that_leaves_has_cost(
    replies: list[Admitted | PrefillProgress | TextDelta], waiting: int, prefills: int, tokens: int
) -> None:
    observed = Observed()
    watched = Watched(observed, received_at=10.0)
    for reply in replies:
        watched.saw(reply)
    watched.ended(Outcome.CANCELLED, 14.0)
    assert observed.outcomes[Outcome.CANCELLED] == 1
    assert observed.waiting_cancelled == waiting
    assert (observed.cancelled_prefills, observed.cancelled_prefill_tokens) == (prefills, tokens)
    assert counted(observed.duration) == (0.0, 0)
