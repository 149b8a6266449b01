"""A real browser without a window: it opens a page of ours, whose script says what it saw."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

VERDICT_S = 60.0

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


_PAGE = """<!doctype html><meta charset=utf-8><title>page</title><script type=module>
const tell = (verdict) => fetch("/verdict", {method: "POST", body: JSON.stringify(verdict)});
%s
</script>"""


class Pages(ThreadingHTTPServer):
    """Serves one page on an origin of its own.

    Args:
        script: text of the page's module; it fetches ``/given`` and calls `tell(verdict)` once.

    Attributes:
        given: JSON for the page.
    """

    daemon_threads = True

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.page = _PAGE % script
        self.given = "{}"
        self.verdicts = queue.Queue()

    @property
    def origin(self):
        return f"http://127.0.0.1:{self.server_port}"

    def verdict(self):
        """Wait for what the page's script says."""
        return self.verdicts.get(timeout=VERDICT_S)


class _Handler(BaseHTTPRequestHandler):
    server: Pages

    def do_GET(self):
        found = {"/": (self.server.page, "text/html"), "/given": (self.server.given, "application/json")}
        text, kind = found.get(self.path, ("", "text/plain"))
        self._answer(200 if text else 404, text.encode(), kind)

    def do_POST(self):
        self.server.verdicts.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(204, b"", "text/plain")

    def _answer(self, status, body, kind):
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving_page(script):
    """Serve a page, as `Pages` does."""
    with Pages(script) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        try:
            yield pages
        finally:
            pages.shutdown()


@contextlib.contextmanager
def browsing(url, folder):
    """Open an address in a browser that knows of nothing else.

    Args:
        url: the address.
        folder: its profile and its log; fresh.
    """
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={folder / 'profile'}", url],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
