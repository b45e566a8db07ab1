"""A page in a real headless Chromium, over its DevTools protocol."""

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websocket import WebSocket, create_connection

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)
COMPLAINTS = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
SECONDS = 30


class Tab:
    """One page. `complaints` collects what it wrote to the console, `requests` every address that it asked for."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket, self._sent = socket, 0
        self.complaints: list[dict[str, Any]] = []
        self.requests: list[str] = []
        for domain in ("Log", "Runtime", "Page", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._sent += 1
        self._socket.send(json.dumps({"id": self._sent, "method": method, "params": parameters}))
        while (message := self._next()).get("id") != self._sent:
            pass
        assert "error" not in message, message
        return message["result"]

    def open(self, path: Path, width: int, *, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self) -> bytes:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {**size, "scale": 1}
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])

    def _next(self) -> dict[str, Any]:
        message = json.loads(self._socket.recv())
        if message.get("method") in COMPLAINTS:
            self.complaints.append(message["params"])
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        return message


@contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """A browser with a fresh profile in the folder `profile`; it ends with the context."""
    assert CHROMIUM is not None
    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        socket = create_connection(_address(profile / "DevToolsActivePort"), timeout=SECONDS)
        try:
            yield Tab(socket)
        finally:
            socket.close()
    finally:
        process.terminate()
        process.wait()


def _address(port_file: Path) -> str:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if port_file.exists() and (lines := port_file.read_text().splitlines()):
            with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=SECONDS) as answer:
                pages = [page for page in json.load(answer) if page["type"] == "page"]
            if pages:
                return pages[0]["webSocketDebuggerUrl"]
        time.sleep(0.05)
    raise AssertionError(f"chromium did not open a page within {SECONDS} s")
