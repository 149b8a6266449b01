"""Threads that run streams for nobody in particular, so that asking whether work has ended lets it end."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Final

from tensorwasm.errors import TensorWasmError
from tensorwasm.gpu.emulator.queues import EmulatedStream, Mark, Queues
from tensorwasm.values import NEVER

THREADS: Final = 4

_log: Final = logging.getLogger(__name__)


class Background:
    """At most `THREADS` daemon threads, no two on one stream. They start when needed, and end when nothing is left.

    Args:
        queues: the streams.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._lock = threading.Lock()
        self._waiting: deque[EmulatedStream] = deque()
        self._asked: set[EmulatedStream] = set()
        self._threads = 0

    def ask(self, mark: Mark) -> None:
        """Have the work before a mark run. Asking again for the same changes nothing."""
        stream = mark.stream
        with self._lock:
            if mark.settled or stream.asked >= mark.count:
                return
            stream.asked = mark.count
            if stream in self._asked:
                return
            self._asked.add(stream)
            self._waiting.append(stream)
            if self._threads == THREADS:
                return
            self._threads += 1
        threading.Thread(target=self._work, name="tensorwasm-emulator", daemon=True).start()

    def _work(self) -> None:
        while (stream := self._next()) is not None:
            self._run(Mark(stream, stream.asked))
            with self._lock:
                if Mark(stream, stream.asked).settled:
                    self._asked.discard(stream)
                else:
                    self._waiting.append(stream)

    def _next(self) -> EmulatedStream | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None

    def _run(self, mark: Mark) -> None:
        try:
            self._queues.run_to(mark, NEVER)
        except TensorWasmError:
            _log.debug("work in the background failed; whoever waits for it is told", exc_info=True)
        except Exception:  # noqa: BLE001 - the stream has failed with it; this thread has others to run
            _log.exception("work in the background broke off")
