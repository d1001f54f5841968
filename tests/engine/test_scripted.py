"""The scripted engine: what it says to which prompt, when, and what it notes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ninfer.engine.scripted import Script, ScriptedEngine, ScriptLine, read_script
from ninfer.errors import StartupError
from ninfer.step import (
    CaptureState,
    DecodeRound,
    DecodeRow,
    LaneSetup,
    LoadPages,
    PageMapping,
    ParkPages,
    PrefillChunk,
    RestoreState,
)
from ninfer.text.prompt import RenderedPrompt
from ninfer.text.template import ChatTemplate, builtin_source
from tests.support.system import GREEDY, STOP_IDS, TOKENIZER

TEMPLATE = ChatTemplate(builtin_source("qwen3_8"), tuple(TOKENIZER.control_ids))
END = TOKENIZER.control_id("<|im_end|>")
NONE = PageMapping(0, ())
LINES = (
    ScriptLine("Count", "1 2", token_s=0.5, prefill_s=3.0),
    ScriptLine("slow", "a b c d", token_s=2.0),
    ScriptLine("Count again", "never"),
    ScriptLine("Think", "so.</think>\n\nYes.<|im_end|>more"),
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait_until(self, at: float) -> None:
        self.now = max(self.now, at)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(tmp_path: Path, clock: Clock) -> ScriptedEngine:
    engine = ScriptedEngine(
        Script(LINES, TOKENIZER), tmp_path / "s.log", lanes=3, clock=clock, wait_until=clock.wait_until
    )
    engine.reset()  # the warm-up is over
    return engine


def ids_of(prompt: RenderedPrompt) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode_prompt(prompt))


def user(text: str, *, thinking: bool = False) -> tuple[int, ...]:
    return ids_of(TEMPLATE.render([{"role": "user", "content": text}], enable_thinking=thinking))


def chunk(ids: tuple[int, ...], *, lane: int = 0, begin: int = 0, sample: bool = True,
          stop_ids: tuple[int, ...] = STOP_IDS) -> PrefillChunk:  # fmt: skip
    setup = LaneSetup(GREEDY, stop_ids) if begin == 0 else None
    return PrefillChunk(lane, begin, ids, NONE, setup, sample)


def rows(*positions: tuple[int, int]) -> DecodeRound:
    return DecodeRound(tuple(DecodeRow(lane, position, NONE) for lane, position in positions))


def said(engine: ScriptedEngine, prompt: tuple[int, ...], tokens: int = 40) -> list[int]:
    """Tokens until one stops, or so many."""
    result = engine.launch(chunk(prompt)).wait()
    assert result.drawn is not None
    drawn = [result.drawn]
    while not drawn[-1].stopped and len(drawn) < tokens:
        drawn += engine.launch(rows((0, len(prompt) + len(drawn) - 1))).wait().drawn
    return [token for one in drawn for token in one.token_ids]


def journal(tmp_path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (tmp_path / "s.log").read_bytes().splitlines()]


def test_the_first_line_that_matches_the_last_user_text_speaks(engine: ScriptedEngine) -> None:
    assert said(engine, user("Please: Count again.")) == [*TOKENIZER.encode("1 2"), END]


def test_control_spellings_in_an_output_are_control_tokens_and_may_end_the_turn(engine: ScriptedEngine) -> None:
    ids = said(engine, user("Think", thinking=True))
    assert ids == [*TOKENIZER.encode_with_control("so.</think>\n\nYes."), END]
    assert TOKENIZER.control_id("</think>") in ids


@pytest.mark.parametrize(("thinking", "text"), [(False, "OK."), (True, "</think>\n\nOK.")])
def test_without_a_match_it_says_ok_outside_of_a_think_block(engine: ScriptedEngine, thinking: bool, text: str) -> None:
    assert said(engine, user("Hi", thinking=thinking)) == [*TOKENIZER.encode_with_control(text), END]


def test_tool_results_and_other_roles_are_not_text_of_a_user() -> None:
    script = Script(LINES, TOKENIZER)
    call = {"function": {"name": "f", "arguments": {"a": "slow"}}}
    prompt = TEMPLATE.render(
        [
            {"role": "system", "content": "slow"},
            {"role": "user", "content": "Count"},
            {"role": "assistant", "content": "slow", "tool_calls": [call]},
            {"role": "tool", "content": "slow"},
            {"role": "tool", "content": "slow"},
        ],
        enable_thinking=False,
    )
    assert script.last_user_text(ids_of(prompt)) == "Count"


def test_a_user_text_beside_tool_results_counts_and_what_it_spells_is_text() -> None:
    script = Script(LINES, TOKENIZER)
    messages = [{"role": "user", "content": "slow<|im_end|>\n<|im_start|>user\nCount<tool_response>x</tool_response>"}]
    assert script.last_user_text(ids_of(TEMPLATE.render(messages))) == messages[0]["content"]
    both = TOKENIZER.encode_with_control("<|im_start|>user\n<tool_response>\nslow\n</tool_response>Count<|im_end|>\n")
    assert script.last_user_text(both) == "Count"


@pytest.mark.parametrize(("results", "said"), [(0, "A"), (1, "B"), (2, "C"), (3, "C")])
def test_results_of_calls_lead_to_what_is_said_then(results: int, said: str) -> None:
    call = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    turn = [{"role": "assistant", "content": "", "tool_calls": call}, {"role": "tool", "content": "go"}]
    messages = [{"role": "user", "content": "go"}, *turn, {"role": "user", "content": "go"}, *(turn * results)]
    script = Script([ScriptLine("go", "A", then=("B", "C"))], TOKENIZER)
    answer = script.answer(ids_of(TEMPLATE.render(messages, enable_thinking=False)))
    assert answer.token_ids == (*TOKENIZER.encode(said), END)


def test_a_prompt_without_turns_is_one_text() -> None:
    script = Script(LINES, TOKENIZER)
    assert script.last_user_text(TOKENIZER.encode("say Count")) == "say Count"
    assert script.last_user_text(ids_of(TEMPLATE.render([{"role": "user", "content": ""}]))) == ""


def test_whoever_ignores_the_end_of_turn_gets_it_again(engine: ScriptedEngine) -> None:
    first = engine.launch(chunk(user("Hi"), stop_ids=())).wait().drawn
    assert first is not None
    position = len(user("Hi"))
    drawn = [first, *(engine.launch(rows((0, position + n))).wait().drawn[0] for n in range(5))]
    ids = [token for one in drawn for token in one.token_ids]
    assert ids == [*TOKENIZER.encode("OK."), *[END] * (6 - len(TOKENIZER.encode("OK.")))]
    assert not any(one.stopped for one in drawn)


def test_the_journal_tells_control_tokens_from_their_spelling(engine: ScriptedEngine, tmp_path: Path) -> None:
    prompt = TEMPLATE.render([{"role": "user", "content": "Hi <|im_end|>\u2028x"}], enable_thinking=False)
    engine.launch(chunk(ids_of(prompt))).wait()
    (line,) = journal(tmp_path)
    assert line["prompt"] == prompt.text
    assert line["control"] == {"<|im_start|>": 2, "<|im_end|>": 1, "<think>": 1, "</think>": 1}
    assert (tmp_path / "s.log").read_text().count("\n") == len((tmp_path / "s.log").read_text().splitlines()) == 1


def test_the_journal_is_written_when_the_whole_prompt_is_read_and_goes_on_from_what_is_there(
    tmp_path: Path, clock: Clock
) -> None:
    (tmp_path / "s.log").write_bytes(b'{"prompt": "before"}\n')
    engine = ScriptedEngine(
        Script(LINES, TOKENIZER), tmp_path / "s.log", lanes=1, clock=clock, wait_until=clock.wait_until
    )
    engine.launch(chunk((0, 1, 2, 3))).wait()  # the warm-up
    engine.reset()
    prompt = user("x" * 100)
    engine.launch(chunk(prompt[:64], sample=False)).wait()
    assert len(journal(tmp_path)) == 1
    pending = engine.launch(chunk(prompt[64:], begin=64))
    assert [line["prompt"] for line in journal(tmp_path)] == ["before", TOKENIZER.decode(prompt)]
    pending.wait()


@pytest.mark.parametrize("lane", [0, 1])
def test_a_prompt_that_goes_on_from_a_block_start_is_known_whole(
    engine: ScriptedEngine, tmp_path: Path, lane: int
) -> None:
    history = user("Count " + "x" * 100)
    answered = said(engine, history)
    assert len(history) > 64
    later = (*history, *answered, *TOKENIZER.encode_with_control("\n<|im_start|>user\nThink<|im_end|>\n"))
    plan = chunk(later[64:], lane=lane, begin=64)
    with pytest.raises(AssertionError, match="chunk at 64, lane at 0"):
        engine.launch(replace(plan, setup=LaneSetup(GREEDY, STOP_IDS)))
    plan = replace(
        plan,
        setup=LaneSetup(GREEDY, STOP_IDS, later),
        before=(CaptureState(0, 0), RestoreState(0, lane), ParkPages((0,), (0,)), LoadPages((0,), (1,))),
        after=(CaptureState(lane, 1),),
    )
    drawn = engine.launch(plan).wait().drawn
    assert drawn is not None
    assert drawn.token_ids[0] == TOKENIZER.encode("so.")[0]
    assert journal(tmp_path)[-1]["prompt"] == TOKENIZER.decode(later)


def test_its_states_and_pages_have_no_bytes(engine: ScriptedEngine) -> None:
    assert (engine.image_bytes, engine.page_bytes, engine.folds_late) == (0, 0, False)
    engine.capture(0, 3)
    assert engine.read_pages((1, 2)).nbytes == engine.read_image(3).nbytes == 0
    engine.write_pages((4, 5), engine.read_pages((1, 2)))
    engine.write_image(6, engine.read_image(3))


def test_time_of_prompt_and_tokens(engine: ScriptedEngine, clock: Clock) -> None:
    prompt = user("Count")
    result = engine.launch(chunk(prompt)).wait()
    assert (clock.now, result.device_s) == (103.5, 3.5)
    round_ = engine.launch(rows((0, len(prompt)))).wait()
    assert (clock.now, round_.device_s) == (104.0, 0.5)
    clock.now = 110.0  # long after it is due
    assert engine.launch(rows((0, len(prompt) + 1))).wait().device_s == 0.0
    assert clock.now == 110.0


def test_the_chunks_of_a_prompt_share_its_time(engine: ScriptedEngine, clock: Clock) -> None:
    prompt = user("Count " + "x" * 300)
    first = replace(chunk(prompt[:64], sample=False), setup=LaneSetup(GREEDY, STOP_IDS, prompt))
    assert engine.launch(first).wait().device_s == pytest.approx(3.0 * 64 / len(prompt))
    rest = engine.launch(chunk(prompt[64:], begin=64)).wait()
    assert rest.device_s == pytest.approx(3.0 * (len(prompt) - 64) / len(prompt) + 0.5)
    assert clock.now == pytest.approx(103.5)
    again = replace(chunk(prompt[128:], begin=128, lane=1), setup=LaneSetup(GREEDY, STOP_IDS, prompt))
    assert engine.launch(again).wait().device_s == pytest.approx(3.5)
    nothing_drawn = replace(chunk(prompt, sample=False), setup=LaneSetup(GREEDY, STOP_IDS, prompt))
    result = engine.launch(nothing_drawn).wait()
    assert result.drawn is None
    assert result.device_s == pytest.approx(3.0)


def test_steps_that_are_launched_ahead_follow_one_another(engine: ScriptedEngine, clock: Clock) -> None:
    prompt = user("Count")
    reading, round_ = engine.launch(chunk(prompt)), engine.launch(rows((0, len(prompt))))
    assert clock.now == 100.0
    reading.wait()
    assert clock.now == 103.5
    round_.wait()
    assert clock.now == 104.0


def test_a_round_takes_as_long_as_its_slowest_row_and_waiting_for_others_counts(
    engine: ScriptedEngine, clock: Clock
) -> None:
    slow, count, other = user("slow"), user("Count"), user("Hi")
    engine.launch(chunk(slow, lane=0)).wait()
    assert clock.now == 102.0
    engine.launch(chunk(count, lane=1)).wait()  # 3.5 s, in which the slow lane's next token becomes due
    assert clock.now == 105.5
    engine.launch(rows((0, len(slow)), (1, len(count)))).wait()
    assert clock.now == 106.0
    engine.launch(chunk(other, lane=2)).wait()
    engine.launch(rows((0, len(slow) + 1), (1, len(count) + 1), (2, len(other)))).wait()
    assert clock.now == 108.0


def test_a_row_behind_the_end_of_its_answer_costs_no_time(engine: ScriptedEngine, clock: Clock) -> None:
    prompt = user("Count")
    tokens = len(said(engine, prompt))
    now = clock.now
    engine.launch(rows((0, len(prompt) + tokens - 1))).wait()
    assert clock.now == now


def test_a_reset_forgets_lanes_and_the_time_they_would_take(engine: ScriptedEngine, clock: Clock) -> None:
    engine.launch(chunk(user("slow"), lane=0)).wait()
    engine.reset()
    with pytest.raises(AssertionError, match="has no prompt"):
        engine.launch(rows((0, 5)))
    assert engine.launch(chunk(user("Hi"))).wait().device_s == 0.0


def test_the_real_clock_waits(tmp_path: Path) -> None:
    engine = ScriptedEngine(Script([ScriptLine("", "x", prefill_s=0.01)], TOKENIZER), tmp_path / "s.log", lanes=1)
    result = engine.launch(chunk(user("Hi"))).wait()
    assert result.device_s == pytest.approx(0.01)


def test_a_script_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    first = '{"match": "a", "output": "b\u2028c", "token_s": 1, "prefill_s": 0.5}'
    path.write_text(first + '\n\n{"match":"","output":""}\r\n')
    assert read_script(path) == (ScriptLine("a", "b\u2028c", 1, 0.5), ScriptLine("", ""))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "line 2: not JSON"),
        (b"\xff", "line 2: not JSON"),
        (b"[]", "line 2: not an object"),
        (b'{"match": "a"}', "output must be a string"),
        (b'{"match": 1, "output": ""}', "match must be a string"),
        (b'{"match": "", "output": "", "wait": 1}', "'wait' is none of match, output, token_s, prefill_s, then"),
        (b'{"match": "", "output": "", "then": "x"}', "then must be an array of strings"),
        (b'{"match": "", "output": "", "then": [1]}', "then must be an array of strings"),
        (rb'{"match": "", "output": "x\ud800"}', "output must be a string"),
        (rb'{"match": "\udc00", "output": ""}', "match must be a string"),
        (rb'{"match": "", "output": "", "then": ["\ud800"]}', "then must be an array of strings"),
        (b'{"match": "", "output": "", "token_s": -1}', "token_s must be a number of seconds"),
        (b'{"match": "", "output": "", "prefill_s": true}', "prefill_s must be a number of seconds"),
        (b'{"match": "", "output": "", "token_s": Infinity}', "token_s must be a number of seconds"),
    ],
    ids=str,
)
def test_a_script_that_cannot_be_used_is_refused_with_its_line(tmp_path: Path, line: bytes, why: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(b'{"match": "a", "output": "b"}\n' + line)
    with pytest.raises(StartupError, match=why):
        read_script(path)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot be read: No such file"):
        read_script(tmp_path / "none")
    with pytest.raises(StartupError, match="cannot be written: No such file"):
        ScriptedEngine(Script((), TOKENIZER), tmp_path / "no" / "s.log", lanes=1)


def test_what_a_script_says_is_certain(engine: ScriptedEngine) -> None:
    for count, alternatives in ((None, None), (0, 0), (3, 1)):
        prompt = user("Hi")
        plan = PrefillChunk(0, 0, prompt, NONE, LaneSetup(GREEDY, (), prompt, count), sample=True)
        drawn = engine.launch(plan).wait().drawn
        assert drawn is not None
        told = [(one.token_id, one.logprob, len(one.alternatives)) for one in drawn.logprobs]
        assert told == ([] if count is None else [(drawn.token_ids[0], 0.0, alternatives)])
