"""Headless Chromium, driven over its debugging pipe: what a person does on a page, and what the page did meanwhile."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",  # root in a container has none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-breakpad",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
# Chromium reads commands from descriptor 3 and answers on 4.
START = """
import fcntl, os, sys
reads, writes, *command = sys.argv[1:]
reads, writes = (fcntl.fcntl(int(pipe), fcntl.F_DUPFD, 10) for pipe in (reads, writes))
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(command[0], command)
"""
PATIENCE_S = 180  # a loaded machine starts a browser slowly; a good one answers at once


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one browser; ``problems`` lists errors, dialogs and requests to the outside since the last visit."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        there, self._out = os.pipe()
        self._in, back = os.pipe()
        start = [sys.executable, "-c", START, str(there), str(back)]
        self._process = subprocess.Popen(
            [*start, program, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(there, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        self._received, self._number, self._session = b"", 0, ""
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Give a command and wait for its answer."""
        number = self._send(method, params)
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer:
                self._events.append(answer)
            if answer.get("method") == "Page.javascriptDialogOpening":  # nothing else is answered while one is open
                self._send("Page.handleJavaScriptDialog", {"accept": True})

    def _send(self, method: str, params: dict[str, Any]) -> int:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": params, **session}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        return self._number

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._in], [], [], max(0, deadline - time.monotonic()))
            more = os.read(self._in, 1 << 16) if ready else b""
            if not more:
                raise RuntimeError("Chromium does not answer")
            self._received += more
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def visit(self, path: Path, *, dark: bool = False, phone: bool = False) -> None:
        """Open a file and wait until it is drawn."""
        self._events.clear()
        width, height = (390, 844) if phone else (1180, 900)
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._page = path.resolve().as_uri()
        self.call("Page.navigate", url=self._page)
        self.wait_for(f"document.readyState === 'complete' && location.href === {json.dumps(self._page)}")
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.evaluate(condition):
            if time.monotonic() > deadline:
                raise RuntimeError(f"never became true: {condition}")
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element."""
        x, y = self.evaluate(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
            " found.scrollIntoView({block: 'center'}); const box = found.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, selector: str, key: str, times: int = 1) -> None:
        """Press a key on an element that has the focus."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        code = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Enter": 13}[key]
        for _ in range(times):
            for kind in ("rawKeyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def type_into(self, selector: str, text: str) -> None:
        """Replace what a field holds, and leave it."""
        chosen = json.dumps(selector)
        self.evaluate(f"document.querySelector({chosen}).focus(); document.querySelector({chosen}).select()")
        self.call("Input.insertText", text=text)
        self.evaluate(f"document.querySelector({chosen}).blur()")

    def screenshot(self, path: Path, *, whole: bool = True) -> bytes:
        """Take a picture of the page, all of it or what is in view."""
        png = base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])
        path.write_bytes(png)
        return png

    def problems(self) -> list[str]:
        """What should not have happened on the page since it was opened."""
        self.evaluate("1")  # whatever was under way has been reported by now
        found = []
        for event in self._events:
            kind, params = event.get("method", ""), event.get("params", {})
            if kind in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
                found.append(f"{kind}: {params}")
            elif kind == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(f"{kind}: {params['entry']['text']}")
            elif kind == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if url != self._page and not url.startswith("data:"):
                    found.append(f"a request to {url}")
        return found
