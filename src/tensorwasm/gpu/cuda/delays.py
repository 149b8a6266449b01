"""Whether work that is overdue runs too long, or has only been held up by the work of others.

Nothing can stop a kernel: one that never ends costs this process the GPU. On a GPU that is busy a kernel may also be
late because it has not begun. What was given to other streams before it was found late, and is within its own time,
excuses it; what is given later does not, so that nobody is excused for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from tensorwasm.gpu.cuda.handles import CudaStream, Overdue, Rival
from tensorwasm.gpu.cuda.streams.device_streams import DeviceStreams

OVERRUN_GRACE_NS: Final = 900_000_000
"""How long past its deadline a kernel may run before the GPU is given up: less than a session waits at its end."""

UNKNOWN_NS: Final = 30_000_000_000
"""How long work may take that says no deadline: compiled code tells of its work only when somebody waits for it."""


class Delays:
    """Knows of each stream with overdue work what may hold it up. Safe from any thread; the context must be bound.

    Args:
        streams: asks the driver.
        live: returns the streams that there are.
    """

    def __init__(self, streams: DeviceStreams, live: Callable[[], Iterable[CudaStream]]) -> None:
        self._streams = streams
        self._live = live
        self._lock = threading.Lock()

    def excuse(self, own: CudaStream) -> bool:
        """Return whether others' work may be what a stream with overdue work waits for, or was until a moment ago.

        Raises:
            DriverFailure: work of one of them failed.
        """
        now_ns, ended = time.monotonic_ns(), own.dues.ended
        with self._lock:
            overdue = own.overdue
            if overdue is None or overdue.ended != ended:
                overdue = own.overdue = Overdue(ended, self._find_rivals(own, now_ns))
            overdue.rivals = [rival for rival in overdue.rivals if now_ns < rival.until_ns and self._works(rival)]
            if overdue.rivals:
                overdue.excused_until_ns = now_ns + OVERRUN_GRACE_NS
            return bool(overdue.rivals) or now_ns < overdue.excused_until_ns

    def _find_rivals(self, own: CudaStream, now_ns: int) -> list[Rival]:
        busy = [each for each in self._live() if each is not own and not self._ended(each)]
        return [_rival(each, now_ns) for each in busy]

    def _works(self, rival: Rival) -> bool:
        return not self._ended(rival.stream) and (rival.mark is None or rival.stream.dues.holds(rival.mark))

    def _ended(self, stream: CudaStream) -> bool:
        return stream.recording or self._streams.drained(stream)


def _rival(stream: CudaStream, now_ns: int) -> Rival:
    due = stream.dues.latest
    if due is None or due.at_ns is None:
        return Rival(stream, None, now_ns + UNKNOWN_NS)
    return Rival(stream, stream.dues.mark(), due.at_ns + OVERRUN_GRACE_NS)
