"""A real browser for tests: headless Chromium through chromedriver's WebDriver protocol, with the standard library."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def programs() -> tuple[str, str] | None:
    """Chromium and its driver, or None when one of them is absent."""
    driver = shutil.which("chromedriver")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    return (chromium, driver) if chromium and driver else None


class Browser:
    """One browser window; closes its processes when used as a context."""

    def __init__(self, profile: Path, width: int, height: int) -> None:
        found = programs()
        assert found is not None
        chromium, driver = found
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._process = subprocess.Popen(
            [driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._base = f"http://127.0.0.1:{port}"
        self._session = ""
        options = {
            "binary": chromium,
            "args": [*FLAGS, f"--user-data-dir={profile}"],
            "mobileEmulation": {"deviceMetrics": {"width": width, "height": height, "pixelRatio": 1.0}},
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._wait_for_driver()
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", self._session)
        finally:
            self._process.terminate()
            self._process.wait(timeout=20)

    def open(self, page: Path) -> None:
        """Load a file and wait for it."""
        self._call("POST", f"{self._session}/url", {"url": page.resolve().as_uri()})

    def run(self, script: str) -> Any:
        """The value that a piece of JavaScript returns."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def console(self) -> list[str]:
        """Everything the console received since the last call."""
        return [entry["message"] for entry in self._call("POST", f"{self._session}/se/log", {"type": "browser"})]

    def prefer(self, scheme: str) -> None:
        """Let the reader prefer "light" or "dark" pages."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        command = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}}
        self._call("POST", f"{self._session}/goog/cdp/execute", command)

    def screenshot(self, target: Path) -> None:
        """Write what the window shows."""
        target.write_bytes(base64.b64decode(self._call("GET", f"{self._session}/screenshot")))

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def _wait_for_driver(self) -> None:
        end = time.monotonic() + 30
        while True:
            try:
                self._call("GET", "/status")
                return
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < end, "chromedriver does not answer"
                time.sleep(0.05)
