"""Clients that call one function without a pause, and a reload of the server that they call."""

import subprocess
import sys
import threading
import time

import httpx

from neighbours import until


class Load:
    """A client that calls a function again and again, through one connection at a time.

    Attributes:
        answers: status and result of each call, or the error of one without an answer.
        answered_s: when the last came.
    """

    def __init__(self, server, function):
        self._server, self._function = server, function
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answers, self.answered_s = [], []

    def __enter__(self):
        self._thread.start()
        until(lambda: len(self.answers) > 10)
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def _run(self):
        with self._server.client() as client:
            while not self._ended.is_set():
                try:
                    answer = client.post(
                        f"/functions/{self._function}/invoke", json={"export": "add", "args": [len(self.answers), 1]}
                    )
                    self.answers.append((answer.status_code, answer.json().get("result", answer.text)))
                except httpx.HTTPError as error:
                    self.answers.append((0, repr(error)))
                    self._ended.wait(0.01)  # it leaves a processor to the next server
                self.answered_s.append(time.monotonic())

    def wrong(self):
        return [each for number, each in enumerate(self.answers) if each != (200, [number + 1])]


def reload(server):
    """Reload a server, and return the exit code and the output."""
    command = [sys.executable, "-m", "tensorwasm.cli", "reload", "--data", str(server.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr
