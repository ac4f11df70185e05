# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over a pair of pipes by its DevTools protocol. Nothing but Python's own library is needed."""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

kNames = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]


def find() -> str | None:
    return os.environ.get("CHROMIUM") or next((path for path in map(shutil.which, kNames) if path), None)


class Page:
    """One page. What went wrong on it is in `faults`, what it asked for beside itself in `requests`."""

    def __init__(self, program: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        high_in, high_out = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs_in, theirs_out))
        words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run",
                 "--hide-scrollbars", f"--user-data-dir={self.folder.name}", "about:blank"]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(3, 4),
                                        preexec_fn=lambda: (os.dup2(high_in, 3), os.dup2(high_out, 4)))
        for fd in (theirs_in, theirs_out, high_in, high_out):
            os.close(fd)
        self.out, self.incoming, self.rest, self.number = ours_out, ours_in, b"", 0
        self.faults, self.requests, self.events, self.session = [], [], [], None
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility", "Performance"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def read(self, deadline: float) -> dict:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.incoming], [], [], max(deadline - time.monotonic(), 0))
            chunk = os.read(self.incoming, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("the browser does not answer")
            self.rest += chunk
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def heard(self, message: dict) -> None:
        method, params = message.get("method"), message.get("params", {})
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.faults.append(details.get("exception", {}).get("description", details["text"]))
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.faults.append(f"console: {params['args']}")
        if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.faults.append(f"log: {params['entry']['text']}")
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def ask(self, method: str, **params) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            answer = self.read(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.heard(answer)

    def open(self, path: Path, width: int, height: int, dark: bool = False, media: str = "screen") -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.faults.clear(), self.requests.clear(), self.events.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + 60
        while "Page.loadEventFired" not in self.events:
            self.heard(self.read(deadline))

    def value(self, script: str):
        """What an expression comes to, as JSON."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **({"text": text} if text else {}))
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def busy_seconds(self) -> float:
        """What this page's thread has spent on scripts, styles and layout."""
        metrics = {m["name"]: m["value"] for m in self.ask("Performance.getMetrics")["metrics"]}
        return metrics["ScriptDuration"] + metrics["LayoutDuration"] + metrics["RecalcStyleDuration"]

    def picture(self, path: Path, whole: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]))
