"""As much of the WebDriver protocol as looking at a page needs: a headless Chromium of this machine."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.process import free_port


class Browser:
    """One window."""

    def __init__(self, base: str) -> None:
        self._base = base
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1100,1400"]
        options = {"args": flags, "binary": shutil.which("chromium")}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base = f"{base}/session/{made['sessionId']}"

    def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        self._call("POST", "/url", {"url": url})

    def run(self, script: str) -> Any:
        """The value that a script returns to which it is given a function to call."""
        return self._call("POST", "/execute/async", {"script": script, "args": []})

    def complaints(self) -> list[str]:
        """What the console has got since it was last read."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def picture(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._call("GET", "/screenshot"))

    def close(self) -> None:
        self._call("DELETE", "")

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        asked = urllib.request.Request(self._base + path, data, {"content-type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(asked, timeout=60) as answer:
            return json.load(answer)["value"]


@contextmanager
def browser(log: Path) -> Iterator[Browser]:
    """A browser of its own; `log` is what its driver writes."""
    driver = shutil.which("chromedriver")
    assert driver is not None, "the packages chromium and chromium-driver are needed"
    port = free_port()
    process = subprocess.Popen([driver, f"--port={port}", f"--log-path={log}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        while "started successfully" not in (line := process.stdout.readline()):
            assert line, "the driver ended"
        window = Browser(f"http://127.0.0.1:{port}")
        try:
            yield window
        finally:
            window.close()
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(30)
