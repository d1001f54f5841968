"""The event loop stays free while a long prompt is tokenised and read."""

from __future__ import annotations

import orjson
import pytest

from ninfer.bench import event_loop

# Twenty times the bound: this machine is shared and noisy; the benchmark reports exactly. A prompt tokenised on the
# loop itself, or an engine called from it, takes seconds and fails by far.
GENEROUS_MS = 100.0


def test_a_hundred_thousand_tokens_do_not_block_the_loop() -> None:
    tokenised, read = event_loop.run(None, prompt_tokens=100_000, read_tokens=3_000)
    assert tokenised.phase.startswith("tokenise 10")
    assert tokenised.max_ms < GENEROUS_MS
    assert read.max_ms < GENEROUS_MS
    assert min(tokenised.samples, read.samples) > 20


def test_the_command_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert event_loop.main(["--prompt-tokens", "300"]) == 0
    assert "tokenise 3" in capsys.readouterr().out
    assert event_loop.main(["--prompt-tokens", "300", "--read-tokens", "100", "--json"]) == 0
    report = orjson.loads(capsys.readouterr().out)
    assert [phase["phase"].split()[0] for phase in report["phases"]] == ["tokenise", "prefill"]
