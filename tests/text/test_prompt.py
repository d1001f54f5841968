from __future__ import annotations

import pytest

from ninfer.text.marks import Marks, mark_places
from ninfer.text.prompt import FAMILY_CONTROL_TOKENS, RenderedPrompt, Segment


def control(text: str) -> Segment:
    return Segment(text, control=True)


def plain(text: str) -> Segment:
    return Segment(text, control=False)


def test_the_family_has_33_control_tokens() -> None:
    assert len(set(FAMILY_CONTROL_TOKENS)) == len(FAMILY_CONTROL_TOKENS) == 33
    assert FAMILY_CONTROL_TOKENS.index("<think>") == 248_068 - 248_044
    assert FAMILY_CONTROL_TOKENS[-1] == "<|audio_pad|>"


@pytest.mark.parametrize(
    ("segments", "opens"),
    [
        ((), False),
        ((plain("<think>\n"),), False),
        ((control("<|im_start|>"), plain("assistant\n"), control("<think>"), plain("\n")), True),
        ((control("<think>"), plain("\n\n"), control("</think>"), plain("\n\n<think>")), False),
        ((control("<think>"), plain("\n"), control("<|im_start|>"), plain("assistant\n")), False),
        ((control("<think>"), plain("\n"), control("<|image_pad|>")), True),
    ],
)
def test_opens_think(segments: tuple[Segment, ...], opens: bool) -> None:
    assert RenderedPrompt(segments).opens_think is opens


def test_continued_keeps_text_segments_apart_from_control_tokens() -> None:
    prompt = RenderedPrompt((control("</think>"), plain("\n\n")))
    assert prompt.continued("The <think>").segments == (control("</think>"), plain("\n\nThe <think>"))
    assert RenderedPrompt((control("</think>"),)).continued("a").segments == (control("</think>"), plain("a"))
    assert RenderedPrompt(()).continued("a").segments == (plain("a"),)
    assert prompt.continued("") is prompt


@pytest.mark.parametrize("length", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_marks_are_found_on_both_sides_of_a_window(length: int) -> None:
    marks = Marks(("<|a|>", "<|b|>"))
    first, second = "\ud800", "\ud801"
    text = "é" * length
    prompt = marks.read(f"{first}{text}{second}{second}{text}")
    between = (Segment(text, control=False),) if length else ()
    control = (Segment("<|b|>", control=True),) * 2
    assert prompt.segments == (Segment("<|a|>", control=True), *between, *control, *between)
    assert list(mark_places(f"{text}{first}")) == [length]
