"""The command as an operator runs it: refusals before anything is loaded, a real model over real sockets, the drain."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest

from ninfer import serve
from ninfer.options import usage
from ninfer.version import VERSION
from tests.support.process import ENVIRONMENT, Process, free_port

MODEL = "ninfer-embedded"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ninfer.serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, Path]]:
    log = tmp_path_factory.mktemp("serve") / "requests.jsonl"
    process = Process(
        *("--api-key", "s3cret", "--max-concurrency", "2", "--kv-capacity", "auto", "--greedy"),
        *("--request-log-jsonl", str(log), "--log-stats-interval-ms", "200"),
    )
    process.wait_for("ready: ")
    yield process, log
    process.process.terminate()
    assert process.end() == 0


@pytest.fixture
def sdk(server: tuple[Process, Path]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server[0].url, api_key="s3cret", max_retries=0) as client:
        yield client


def test_help_version_and_wrong_options(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert serve.main(["--help"]) == 0
    assert capsys.readouterr().out == usage()
    assert serve.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ninfer-serve {VERSION}\n"
    assert serve.main(["--port", "x"]) == 1
    assert capsys.readouterr().err == f"error: --port 'x' must be an integer\n\n{usage()}"
    monkeypatch.setenv("NINFER_CUDA_SYNC", "")
    assert serve.main([]) == 1
    assert "NINFER_CUDA_SYNC" in capsys.readouterr().err


def test_a_busy_port_is_found_before_anything_is_read() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        done = run("no-such-model.ninfer", "--port", str(busy.getsockname()[1]))
    assert done.returncode == 1
    assert "cannot listen on 127.0.0.1:" in done.stderr


def test_a_model_that_is_not_there() -> None:
    done = run("no-such-model.ninfer", "--port", str(free_port()))
    assert done.returncode == 1
    assert done.stderr.endswith("error: the model no-such-model.ninfer is not a file\n")


def test_a_plan_that_does_not_fit_ends_with_exact_numbers() -> None:
    done = run("--device-memory-limit", "4MiB", "--port", str(free_port()))
    assert done.returncode == 1
    found = re.search(
        r"runtime reservation requires (\d+) bytes; (\d+) bytes are available; short by (\d+)", done.stderr
    )
    assert found, done.stderr
    required, available, short = map(int, found.groups())
    assert available == 4 << 20
    assert required - available == short


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_before_anything_serves_ends_at_once(number: signal.Signals, tmp_path: Path) -> None:
    pipe = tmp_path / "template"
    os.mkfifo(pipe)
    started = Process("--chat-template", str(pipe))
    # Opening this end waits until the server has opened the other: from then on it waits for a template.
    with pipe.open("wb"):
        started.process.send_signal(number)
        assert started.end() == 0
    assert "Traceback" not in started.console


def test_a_thread_that_works_for_nobody_does_not_hold_the_process() -> None:
    script = (
        "import threading; from ninfer import serve; threading.Thread(target=threading.Event().wait).start(); "
        "serve._leave_workers_behind(5)"
    )
    assert subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, timeout=60, check=False).returncode == 5


def test_a_scripted_server_says_what_its_script_says(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"match": "Name a bird", "output": "A wren.</think>\\n\\nWren.", "token_s": 0.001}\n')
    server = Process("--engine", "scripted", "--script", str(script), "--max-concurrency", "2")
    server.wait_for(f"engine=scripted script={script}")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Name a bird."}]}
    message = httpx.post(f"{server.url}/chat/completions", json=body).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("A wren.", "Wren.")
    server.process.terminate()
    assert server.end() == 0
    (line,) = map(orjson.loads, Path(f"{script}.log").read_bytes().splitlines())
    assert "Name a bird.<|im_end|>" in line["prompt"]


def test_a_second_port_has_the_snapshot_alone(tmp_path: Path) -> None:
    script, port = tmp_path / "script.jsonl", free_port()
    script.touch()
    options = ("--engine", "scripted", "--script", str(script), "--api-key", "k")
    server = Process(*options, "--stats-port", str(port))
    server.wait_for("ready: ")
    url, key = f"http://127.0.0.1:{port}", {"x-api-key": "k"}
    assert httpx.get(f"{url}/stats", headers=key).json()["schema"] == "ninfer_serve_stats"
    assert httpx.get(f"{url}/stats").status_code == 401
    assert httpx.get(f"{url}/health", headers=key).status_code == 404
    done = run(*options, "--stats-port", str(port), "--port", str(free_port()))
    assert (done.returncode, f"cannot listen on 127.0.0.1:{port}" in done.stderr) == (1, True)
    server.process.terminate()
    assert server.end() == 0


def test_a_script_that_cannot_be_used(tmp_path: Path) -> None:
    done = run("--engine", "scripted", "--script", str(tmp_path / "none"), "--port", str(free_port()))
    assert (done.returncode, "error: --script" in done.stderr) == (1, True)


def test_two_logs_need_two_files(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    done = run("--event-log", path, "--request-log-jsonl", path, "--port", str(free_port()))
    assert done.returncode == 1
    assert "name the same file" in done.stderr


def test_the_sdk_gets_the_same_whole_and_streamed(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == [MODEL]
    assert sdk.models.retrieve(MODEL).id == MODEL
    ask: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 24}
    whole = sdk.chat.completions.create(**ask)
    stream = sdk.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    parts = list(stream)
    choice = whole.choices[0]
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 24
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == choice.message.content
    assert parts[-1].usage == whole.usage
    assert parts[-2].choices[0].finish_reason == choice.finish_reason


def test_the_sdk_understands_refusals(server: tuple[Process, Path], sdk: openai.OpenAI) -> None:
    message: Any = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.chat.completions.create(model="other", messages=message)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        sdk.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 9000}])
    assert long.value.code == "context_length_exceeded"
    with (
        openai.OpenAI(base_url=server[0].url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_lanes_do_not_change_an_answer(server: tuple[Process, Path], sdk: openai.OpenAI) -> None:
    def answer(text: str) -> Any:
        messages: Any = [{"role": "user", "content": text}]
        done = sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=30)
        return done.choices[0].message

    texts = [f"question {n} " * (n + 1) for n in range(6)]
    alone = [answer(text) for text in texts]
    together: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda n=n, text=text: together.update({n: answer(text)}))
        for n, text in enumerate(texts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[n] for n in range(6)] == alone


def test_the_log_has_a_start_and_no_secret(server: tuple[Process, Path], sdk: openai.OpenAI) -> None:
    sdk.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "unmistakable"}], max_tokens=2)
    text = server[1].read_text()
    found = [orjson.loads(line) for line in text.splitlines()]
    assert found[0]["event"] == "server_start"
    assert [record["event"] for record in found].count("server_start") == 1
    start = found[0]
    assert start["server"]["public_model_id"] == MODEL
    assert start["server"]["api_key_configured"] is True
    assert start["engine"]["kv_capacity_mode"] == "auto"
    assert start["memory"]["runtime_reservation_bytes"] > 0
    assert len({record["server_instance_id"] for record in found}) == 1
    assert "s3cret" not in text + server[0].console
    assert "unmistakable" not in text


def test_a_stop_lets_what_runs_end_and_refuses_the_rest() -> None:
    process = Process("--max-context", "4096", "--log-stats-interval-ms", "0")
    process.wait_for("ready: ")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True, "ignore_eos": True}
    began = time.monotonic()
    with httpx.Client(timeout=60, trust_env=False) as client, contextlib.ExitStack() as streams:
        running = streams.enter_context(client.stream("POST", f"{process.url}/chat/completions", json=body))
        lines = running.iter_lines()
        while "reasoning_content" not in next(lines):
            pass
        waiting = streams.enter_context(client.stream("POST", f"{process.url}/chat/completions", json=body))
        process.process.send_signal(signal.SIGTERM)
        last = [line for line in waiting.iter_lines() if line and not line.startswith(":")][-1]
        assert '"code":"service_unavailable"' in last
        late = client.get(f"http://127.0.0.1:{process.port}/health")
        assert (late.status_code, late.json()["status"]) == (503, "unavailable")
        rest = [line for line in lines if line]
        assert "[DONE]" in rest[-1] or '"code":"service_unavailable"' in rest[-1]
    assert process.end() == 0
    assert time.monotonic() - began < 30
    assert "SIGTERM: stopping" in process.console
    assert "Traceback" not in process.console
