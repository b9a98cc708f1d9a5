"""A browser for the tests of pages: Chromium without a window, spoken to over a pipe in its DevTools protocol."""

import base64
import io
import json
import os
import select
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")

_KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "End": 35, "Home": 36, "Tab": 9}
_SECONDS = 60


class Browser:
    """One tab. `console` holds what pages said or threw, `requests` what they asked the network for."""

    def __init__(self, folder):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The browser reads from descriptor 3 and writes to 4, which are taken here.
        launch = (
            "import fcntl, os, sys; ends = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]; "
            "os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
        )
        command = [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *(f"--user-data-dir={folder / 'profile'}", "--remote-debugging-pipe", "about:blank"),
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", launch, str(to_browser), str(from_browser), *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._count, self._rest, self._events, self._session = 0, b"", [], None

    def __enter__(self):
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_):
        self._end()

    def _end(self):
        # Its pipe closed, a browser ends by itself.
        os.close(self._write)
        try:
            self._process.wait(_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._read)

    def call(self, method, **parameters):
        """Ask for something and wait for the answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._count:
            self._events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _message(self):
        end = time.monotonic() + _SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            received = os.read(self._read, 1 << 20)
            assert received, "the browser is gone"
            self._rest += received
        whole, self._rest = self._rest.split(b"\0", 1)
        return json.loads(whole)

    def open(self, url, width=1000, height=900, dark=False):
        """Open a page in a window of this size, for a reader of this taste, and wait until it is loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        taste = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=taste)
        self._events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._events.append(self._message())
        # Two frames, so that what is drawn after the page is laid out is there.
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def run(self, script):
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key):
        """Press a key as a reader would."""
        code = _KEYS[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def point(self, x, y, click=False):
        """Move the pointer, and click if asked to."""
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            button = "none" if kind == "mouseMoved" else "left"
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=int(click))

    def screenshot(self, whole=False):
        """PNG of what is seen, or of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    def pixels(self):
        """What is seen, as an array of shape (height, width, 3)."""
        with Image.open(io.BytesIO(self.screenshot())) as image:
            return np.asarray(image.convert("RGB"))

    @property
    def console(self):
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self._events if event.get("method") in kinds]

    @property
    def requests(self):
        sent = [event["params"]["request"] for event in self._events if event["method"] == "Network.requestWillBeSent"]
        return [request["url"] for request in sent if not request["url"].startswith("data:")]
