"""A real Chromium, driven over its debugging pipe: JSON messages that end with a zero byte, on descriptors 3 and 4."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 120.0  # seconds that it may say nothing, or a page may take
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)


class Browser:
    """One page; use it in a `with`. Errors of its scripts are kept in `errors`."""

    def __init__(self, profile: Path, *, width: int = 1400, height: int = 900) -> None:
        self.errors: list[str] = []
        self._loads = 0
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session = ""
        from_us, self._out = os.pipe()
        self._in, to_us = os.pipe()
        assert PROGRAM is not None, "chromium is not installed"
        command = [PROGRAM, *FLAGS, f"--window-size={width},{height}", f"--user-data-dir={profile}", "about:blank"]
        # descriptors 3 and 4 of the child, whatever their numbers are here
        wrapped = ["bash", "-c", f'exec 3<&{from_us} 4>&{to_us} && exec "$@"', "bash", *command]
        with (profile / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                wrapped, pass_fds=(from_us, to_us), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        os.close(from_us)
        os.close(to_us)

    def __enter__(self) -> Self:
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime"):
            self._ask(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps({"id": number, "method": method, "params": params, **session}).encode() + b"\0")
        while (message := self._hear()).get("id") != number:
            pass
        assert "error" not in message, f"{method}: {message['error']}"
        result: dict[str, Any] = message["result"]
        return result

    def _hear(self) -> dict[str, Any]:
        """The next message; what it tells of the page is noted."""
        message = self._read()
        if message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description", details["text"])))
        self._loads += message.get("method") == "Page.loadEventFired"
        return message

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._in], [], [], PATIENCE)[0], f"the browser has said nothing for {PATIENCE} s"
            data = os.read(self._in, 1 << 16)
            assert data, "the browser has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, url: str, *, scheme: str = "light") -> None:
        """Load a page as somebody who prefers a light or a dark scheme; nothing of the page before is there then."""
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        before = self._loads
        failed = self._ask("Page.navigate", url=url).get("errorText")
        assert not failed, f"{url}: {failed}"
        while self._loads == before:
            self._hear()

    def text(self) -> str:
        """The text that is seen."""
        return str(self.evaluate("document.body ? document.body.textContent : ''"))

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        return self._ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait_for(self, words: str, seconds: float = PATIENCE) -> str:
        """The page's text once it has these words."""
        end = time.monotonic() + seconds
        while words not in (text := self.text()):
            assert time.monotonic() < end, f"no {words!r} in {text[-2000:]!r}; errors: {self.errors}"
            time.sleep(0.1)
        return text

    def picture(self, path: Path) -> None:
        """What is seen, as a PNG."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"]))
