"""An event loop whose time passes only when nothing is left to do: hours are over at once, and always the same."""

import asyncio
import selectors


class _Selector(selectors.DefaultSelector):
    """Moves time on instead of waiting."""

    loop = None

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits, and nothing ever comes")
        if not ready and timeout:
            self.loop.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self):
        selector = _Selector()
        selector.loop = self
        self.now_s = 0.0
        super().__init__(selector)

    def time(self):
        return self.now_s


def run_virtually(main):
    """Run a coroutine function to its end on a loop of virtual time, and return what it returns."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
