"""The server keeps to its own OpenAPI document, whatever is sent: schemathesis over real sockets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.process import Process

# With `make conformance` for so long; else a fixed number of requests, the same each time.
SECONDS = os.environ.get("NINFER_CONFORMANCE_S")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


def test_answers_are_those_of_the_document(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.touch()
    server = Process(
        *("--engine", "scripted", "--script", str(script), "--slot-save-path", str(tmp_path)),
        *("--max-concurrency", "4", "--max-output-tokens", "64"),
    )
    try:
        server.wait_for("ready:")
        document = server.url.removesuffix("/v1") + "/openapi.json"
        # A stream of events has no end; saving a slot is tested where there is a session to save.
        left_out = ("--exclude-path", "/events", "--exclude-path", "/slots/{slot}")
        run = [str(Path(sys.executable).parent / "st"), "--no-color", "run", document, *left_out]
        run += ["--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing", "--max-examples", "5"]
        run += ["--seed", "1", "--warnings", "off", "--continue-on-failure"]
        run += ["--max-time", SECONDS] if SECONDS is not None else ["--generation-deterministic"]
        done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    finally:
        server.process.terminate()
        server.end()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Tested: 26" in done.stdout, done.stdout
    assert "a request failed" not in server.console
