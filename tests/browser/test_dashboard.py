"""The page at the root in a real browser, over a server that works meanwhile."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.driver import Browser, browser
from tests.support.process import Process

pytestmark = pytest.mark.browser

LINE = {"match": "Count", "output": "</think>\n\n" + "one two three " * 400, "token_s": 0.02}
# Calls back with the text of the page once it holds what is wanted, or with what it holds after ten seconds.
UNTIL = """
const [wanted, done] = [%s, arguments[0]];
const begin = Date.now();
(function look() {
  const text = document.body.innerText;
  if (wanted.every((word) => text.includes(word)) || Date.now() - begin > 10000) done(text); else setTimeout(look, 100);
})();
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "script.jsonl").write_text(json.dumps(LINE))
    process = Process(
        *("--engine", "scripted", "--script", str(folder / "script.jsonl")),
        *("--max-concurrency", "2"),
    )
    process.wait_for("ready:")
    yield process
    process.process.terminate()
    process.end()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("driver") / "driver.log") as found:
        yield found


def ask(server: Process) -> None:
    """A conversation that is read to its end."""
    body = {"model": "ninfer-embedded", "messages": [{"role": "user", "content": "Count"}], "stream": True}
    headers = {"content-type": "application/json"}
    asked = urllib.request.Request(f"{server.url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=120) as answer:
        assert answer.read().endswith(b"[DONE]\n\n")


def until(window: Browser, *words: str) -> str:
    text = window.run(UNTIL % json.dumps(words))
    assert all(word in text for word in words), text
    return str(text)


def test_the_page_draws_what_happens_and_complains_of_nothing(server: Process, window: Browser, tmp_path: Path) -> None:
    address = server.url.removesuffix("/v1") + "/"
    window.open(address)
    until(window, "ninfer-embedded", "decode, tokens/s", "empty")
    readers = [threading.Thread(target=ask, args=(server,)) for _ in range(3)]
    for reader in readers:
        reader.start()
    until(window, "busy", "decode, tokens/s")
    lanes = window.run("arguments[0](document.querySelectorAll('#lanes tr').length)")
    assert lanes == 2
    curves = window.run("arguments[0](document.querySelectorAll('#cards polyline').length)")
    assert curves > 0
    (tmp_path / "dashboard.png").write_bytes(window.picture())
    for reader in readers:
        reader.join()
    until(window, "retained")
    assert window.complaints() == []


def test_the_page_says_when_the_server_has_gone(tmp_path: Path, window: Browser) -> None:
    script = tmp_path / "script.jsonl"
    script.touch()
    process = Process("--engine", "scripted", "--script", str(script))
    process.wait_for("ready:")
    window.open(process.url.removesuffix("/v1") + "/")
    until(window, "decode, tokens/s")
    process.process.terminate()
    process.end()
    window.run(UNTIL % json.dumps(["no such text"]))
    state = window.run("arguments[0]([document.getElementById('status').className, document.body.innerText])")
    assert state[0] == "bad", state
    assert "decode, tokens/s" in state[1]  # what was known stays to be seen
