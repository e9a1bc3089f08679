"""A browser without a window, by the W3C WebDriver protocol: JSON over HTTP to chromedriver.

    with Browser(width=390, dark=True) as browser:
        browser.open("http://127.0.0.1:8000/")
        browser.click("#save")

Needs chromium and chromedriver, nothing of Python's.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key that the protocol fixes
PATIENCE = 20.0  # seconds until something that should appear has


def find_browser() -> str | None:
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


def find_driver() -> str | None:
    return shutil.which("chromedriver")


class Browser:
    """One window; `with` ends it and its processes."""

    def __init__(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        program, driver = find_browser(), find_driver()
        if program is None or driver is None:
            raise ValueError("no browser; on Debian: apt install chromium chromium-driver")
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.base = f"http://127.0.0.1:{port}"
        options: dict[str, Any] = {
            "binary": program,
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
            + ["--hide-scrollbars", f"--user-data-dir={self.folder.name}"]
            + (["--blink-settings=preferredColorScheme=0"] if dark else []),
            "mobileEmulation": {
                "deviceMetrics": {"width": width, "height": height, "pixelRatio": 1, "touch": False}
            },
        }
        wanted = {"browserName": "chrome", "goog:chromeOptions": options}
        wanted["goog:loggingPrefs"] = {"browser": "ALL"}
        self._wait_for_driver()
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{session['sessionId']}"

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *problem: object) -> None:
        try:
            self._ask("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait(10)
            self.folder.cleanup()

    def open(self, address: str) -> None:
        self._ask("POST", "/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that JavaScript returns; waits for a promise."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, expression: str) -> Any:
        """Until a JavaScript expression is true."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if value := self.run(f"return {expression}"):
                return value
            time.sleep(0.05)
        raise AssertionError(f"not within {PATIENCE:.0f} s: {expression}")

    def click(self, selector: str) -> None:
        self._ask("POST", f"/element/{self._find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Keys to an element; of a file input, the path of the file."""
        self._ask("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def press(self, keys: str) -> None:
        """Keys to whatever has the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        board = {"type": "key", "id": "keyboard", "actions": actions}
        self._ask("POST", "/actions", {"actions": [board]})

    def complaints(self) -> list[str]:
        """What the console has said since the last time: errors, and what was forbidden."""
        entries = self._ask("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def _find(self, selector: str) -> str:
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[ELEMENT])

    def _wait_for_driver(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                if self._ask("GET", "/status")["ready"]:
                    return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("chromedriver does not answer")

    def _ask(self, method: str, path: str, content: dict[str, Any] | None = None) -> Any:
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.base + path, body, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            problem = json.load(error)["value"]
            raise AssertionError(f"{path}: {problem['message'].splitlines()[0]}") from None
