"""A real browser for tests: headless Chromium, controlled over its debugging protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tornado.websocket import WebSocketClientConnection, websocket_connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--remote-debugging-port=0", "--window-size=1366,900"),
)


class Page:
    """One tab; `complaints` lists script errors, console errors and failed requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: WebSocketClientConnection) -> None:
        self._loop, self._socket, self._number = loop, socket, 0
        self.complaints: list[str] = []
        self.requested: list[str] = []
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._loop.run_until_complete(asyncio.wait_for(self._call(method, params), 30))

    async def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        await self._socket.write_message(json.dumps(message))
        while True:
            text = await self._socket.read_message()
            assert text is not None, "the browser closed the connection"
            answer = json.loads(text)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._record(answer.get("method"), answer.get("params", {}))

    def _record(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.complaints.append(json.dumps(params["args"])[:500])
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str, timeout: float = 90) -> None:
        deadline = time.monotonic() + timeout
        while not self.ask(expression):
            assert time.monotonic() < deadline, f"not within {timeout} s: {expression}"
            time.sleep(0.05)

    def text(self) -> str:
        return str(self.ask("document.body.innerText"))

    def screenshot(self, path: Path, whole: bool = False) -> bytes:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path.read_bytes()

    def pdf(self) -> bytes:
        printed = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(printed["data"])


@contextmanager
def browsing(folder: Path) -> Iterator[Page]:
    """Start a browser and yield its empty page; stop the browser at the end of the block."""
    assert CHROMIUM is not None
    profile, loop = folder / "profile", asyncio.new_event_loop()
    process = subprocess.Popen(
        [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        socket = loop.run_until_complete(_connect(profile / "DevToolsActivePort"))
        try:
            yield Page(loop, socket)
        finally:
            loop.run_until_complete(_close(socket))
    finally:
        process.terminate()
        process.wait(60)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _close(socket: WebSocketClientConnection) -> None:
    socket.close()
    while await socket.read_message() is not None:  # wait until the browser has closed as well
        pass


async def _connect(file: Path) -> WebSocketClientConnection:
    """Connect to the first page of the browser that writes its port into the file."""
    from tornado.httpclient import AsyncHTTPClient

    deadline = time.monotonic() + 90
    while not (file.exists() and file.read_text().count("\n")):
        assert time.monotonic() < deadline, "the browser did not start"
        await asyncio.sleep(0.05)
    port = file.read_text().splitlines()[0]
    while True:
        answer = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/json/list")
        pages = [page for page in json.loads(answer.body) if page["type"] == "page"]
        if pages:
            url = pages[0]["webSocketDebuggerUrl"]
            return await websocket_connect(url, max_message_size=2**28)
        assert time.monotonic() < deadline, "the browser has no page"
        await asyncio.sleep(0.05)
