"""Chromium as tests drive it."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

SKIPPED = 77  # the status of a test without one
SLOWNESS = float(os.environ.get("RANKWISE_SLOWNESS", "1"))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """Chromium without a window, driven over two pipes: messages of the DevTools protocol, each ended by a zero byte."""

    def __init__(self, profile):
        pipes = [*os.pipe(), *os.pipe()]
        to_read, self.to, self.answers, to_write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipes)
        for end in pipes:
            os.close(end)
        # The browser reads from descriptor 3 and writes to 4.
        script = f'exec 3<&{to_read} 4>&{to_write} {to_read}<&- {to_write}>&-; exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.number, self.buffer, self.events, self.session = 0, b"", [], None
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self.session = None
            self.call("Browser.close")
        os.close(self.to)
        os.close(self.answers)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def receive(self, deadline):
        """The next message; events are kept, too."""
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self.answers, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(message)
        if "method" in message:
            self.events.append(message)
        return message

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 30 * SLOWNESS
        while (answer := self.receive(deadline)).get("id") != self.number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, url, width):
        """Opens a page and waits until it has loaded; the events since then are kept."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def is_true(self, expression):
        """True if an expression is true; not while the page that would answer makes way for the next one."""
        try:
            return self.value(expression)
        except RuntimeError as error:
            if "navigated or closed" in str(error):
                return False
            raise

    def until(self, expression):
        """Waits until an expression is true."""
        deadline = time.monotonic() + 30 * SLOWNESS
        while not self.is_true(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {expression}")
            time.sleep(0.02)

    def complaints(self):
        """Errors on the console, exceptions, and requests that failed."""
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                yield params["exceptionDetails"]
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
                yield params["args"]
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                yield params["entry"]
            elif event["method"] == "Network.loadingFailed":
                yield params

    def requests(self):
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
