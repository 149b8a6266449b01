"""A tenant that asks more often than it may, through several connections, and a count of what it was let do."""

import base64
import threading
import time
from contextlib import contextmanager

import httpx

from fakes.services import SUM

TENANT = 8
QPS, BURST = 20, 10
CONNECTIONS = 4
PAUSE_S = 0.04
NUMBER = 20_000_000
"""What a guest sums up to: it takes long enough to hold what a call may hold."""

CALL = {"export": "sum", "args": [NUMBER]}
HEADERS = {"X-TensorWasm-Tenant": str(TENANT)}


class LimitedTenant:
    """A tenant whose clients call one function all the time.

    Attributes:
        admitted: for each call that was answered with its result: when it was made and answered, and its request's ID.
        limited: how many calls were refused for their rate.
        unanswered: how many ended with their connection: they may have been made.
        wrong: what else was answered.
    """

    def __init__(self, server, patience_s=30.0):
        self._server, self._patience_s = server, patience_s
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.admitted, self.wrong = [], []
        self.limited = self.unanswered = 0
        with server.client(headers=HEADERS) as client:
            rate = {"tenant": TENANT, "quotas": {"qps": QPS, "burst": BURST}}
            client.post("/tenants", json=rate).raise_for_status()
            body = {"name": "limited", "wasm_b64": base64.b64encode(SUM).decode()}
            self.function = client.post("/functions", json=body).raise_for_status().json()["id"]

    @contextmanager
    def calling(self):
        """Have its clients call meanwhile."""
        threads = [threading.Thread(target=self._run, daemon=True) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join(self._patience_s)
                assert not thread.is_alive()

    def excess(self, qps=1.05 * QPS):
        """Return by how much it was let do more than a rate allows, in the worst span of time."""
        worst = lowest = 0.0
        for number, (made_s, answered_s, _) in enumerate(sorted(self.admitted)):
            lowest = min(lowest, number - qps * made_s) if number else number - qps * made_s
            worst = max(worst, number + 1 - qps * answered_s - lowest)
        return worst

    def _run(self):
        with self._server.client(headers=HEADERS) as client:
            while not self._stopping.wait(PAUSE_S):
                made_s = time.time()
                try:
                    answer = client.post(f"/functions/{self.function}/invoke", json=CALL)
                except httpx.ConnectError:
                    continue
                except httpx.HTTPError:
                    with self._lock:
                        self.unanswered += 1
                    continue
                with self._lock:
                    self._take(answer, made_s, time.time())

    def _take(self, answer, made_s, answered_s):
        kind = answer.json()["error"]["kind"] if answer.is_error else ""
        if answer.status_code == 200 and answer.json()["result"] == [NUMBER * (NUMBER + 1) // 2]:
            self.admitted.append((made_s, answered_s, answer.headers["x-request-id"]))
        elif kind == "rate_limited":
            self.limited += 1
        elif kind not in {"not_ready", "draining", "database_unavailable"}:
            self.wrong.append(f"the limited tenant: {answer.status_code} {answer.text[:200]}")
