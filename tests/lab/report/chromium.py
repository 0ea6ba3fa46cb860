"""A headless Chromium without a network, driven over a pipe by the DevTools protocol: no port, no package."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ANSWER_SECONDS: Final = 60
FLAGS: Final = (
    "--headless",
    "--no-sandbox",  # CI runs as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",  # requests come on descriptor 3, answers go to 4
)
# The shell puts the pipes, whatever their numbers here, on the descriptors that Chromium expects.
PLUMBING: Final = 'exec "$0" "$@" 3<&{requests} 4>&{answers}'


def find_chromium() -> str | None:
    """The browser on this machine, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """A page of the browser, and every event that it told of."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = requests, os.fdopen(answers, "rb")
        self._sent, self._session, self._rest = 0, "", b""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser, and wait for its answer."""
        self._sent += 1
        request: dict[str, Any] = {"id": self._sent, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._requests, json.dumps(request).encode() + b"\0")
        while (message := self._read()).get("id") != self._sent:
            self.events.append(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        result: dict[str, Any] = message["result"]
        return result

    def open(self, address: str) -> None:
        """Load a page to its end."""
        self.call("Page.navigate", url=address)
        deadline = time.monotonic() + ANSWER_SECONDS
        while self.evaluate("document.readyState") != "complete" or self.evaluate("location.href") != address:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{address} did not load")
            time.sleep(0.05)

    def show(self, width: int, height: int, scheme: str, *, medium: str = "") -> None:
        """Give the page a size in CSS pixels, light or dark, and a medium."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=medium, features=features)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page, which the page's own policy does not keep from running."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def screenshot(self, path: Path, width: int, height: int, *, top: float = 0.0) -> None:
        """The part of the page that begins ``top`` pixels from its upper end as a PNG."""
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """Complaints of the console, the page and its policy so far."""
        kinds = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in kinds]

    def requested(self) -> list[str]:
        """Every address that was asked for."""
        asked = (event for event in self.events if event.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in asked]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._answers.fileno(), 2**20)
            if not more:
                raise EOFError("Chromium ended")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed


@contextmanager
def browse(browser: str, profile: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, which ends with it."""
    to_browser, from_browser = os.pipe(), os.pipe()
    plumbing = PLUMBING.format(requests=to_browser[0], answers=from_browser[1])
    command = ["bash", "-c", plumbing, browser, *FLAGS, f"--user-data-dir={profile}"]
    with (profile.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(command, pass_fds=(to_browser[0], from_browser[1]), stdout=log, stderr=log)
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        tab = Tab(to_browser[1], from_browser[0])
        yield tab
        tab._answers.close()
    finally:
        os.close(to_browser[1])  # Chromium ends with the pipe
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
