"""The system calls of a store on disk: dying in the middle, failing, or just remembered."""

from __future__ import annotations

import errno
import os

from tensorwasm.artifacts.backends.disk import SystemCalls


class Died(BaseException):
    """The process is no more: nothing that would follow happens."""


class CountedCalls:
    """Passes everything on and counts it. `before` and `after` may end it."""

    def __init__(self):
        self._system = SystemCalls()
        self._system.sync = lambda _descriptor: None
        self.log = []
        self.opened = {}

    def before(self, name, arguments):
        """Called ahead of a call."""

    def after(self, name, arguments):
        """Called after it."""

    def _call(self, name, *arguments, **options):
        self.before(name, arguments)
        self.log.append((name, *(self.opened.get(a, a) if isinstance(a, int) else a for a in arguments)))
        try:
            result = getattr(self._system, name)(*arguments, **options)
        except OSError:
            self.after(name, arguments)
            raise
        if name == "open":
            self.opened[result] = arguments[0]
        if name == "close":
            del self.opened[arguments[0]]
        self.after(name, arguments)
        return result

    def open(self, *arguments):
        return self._call("open", *arguments)

    def close(self, *arguments):
        return self._call("close", *arguments)

    def lock(self, *arguments, wait):
        return self._call("lock", *arguments, wait=wait)

    def write(self, descriptor, data):
        return self._call("write", descriptor, data[: max(1, data.nbytes // 2)])  # never all at once

    def sync(self, *arguments):
        return self._call("sync", *arguments)  # of which nothing but the log is left: a process's end loses no write

    def rename(self, *arguments):
        return self._call("rename", *arguments)

    def unlink(self, *arguments):
        return self._call("unlink", *arguments)

    def mkdir(self, *arguments):
        return self._call("mkdir", *arguments)


class DyingCalls(CountedCalls):
    """Dies at one of the calls, before it or right after it, as under SIGKILL: the kernel closes what was open."""

    def __init__(self, at, *, late):
        super().__init__()
        self._at = at
        self._late = late
        self._count = 0
        self.dead = False

    def before(self, name, arguments):
        if self.dead:
            raise Died
        self._count += 1
        if self._count == self._at and not self._late:
            self._die()

    def after(self, name, arguments):
        if self._count == self._at:
            self._die()

    def _die(self):
        self.dead = True
        for descriptor in self.opened:
            os.close(descriptor)
        raise Died


class FailingCalls(CountedCalls):
    """Has no room at one of the calls; a file is closed even then."""

    def __init__(self, at):
        super().__init__()
        self._at = at
        self.failed = False

    def before(self, name, arguments):
        self._at -= 1
        if self._at == 0 and name != "close":
            self.failed = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
