"""A fleet of processes that do what a test says, at a time that it says."""

import signal
from itertools import count

from tensorwasm.server.process.address import ListenAddress
from tensorwasm.server.process.fleet import Fleet
from tensorwasm.server.process.options import ServeOptions
from tensorwasm.server.process.place import Place
from tensorwasm.server.process.reloading import Reloader

DRAIN_S = 20.0
_numbers = count(1000)


class FakeProcess:
    """A process that reports and ends when it is told to.

    Attributes:
        options: what it was sent.
        signals: what it got, in order.
        closed: the supervisor has forgotten it.
    """

    def __init__(self):
        self.reports = self.code = self.options = None
        self.loaded = self.serves = self.ready = self.closed = False
        self.signals = []
        self.pid = next(_numbers)

    def look(self):
        """There is nothing to read."""

    def send(self, options):
        assert self.options is None
        self.options = options

    def signal(self, number):
        self.signals.append(number)
        if number == signal.SIGKILL and self.code is None:
            self.code = -9

    def close(self):
        assert not self.closed
        self.closed = True
        if self.code is None:
            self.code = -9

    def report(self):
        """Go one step on: loaded, serving, ready."""
        if not self.loaded:
            self.loaded = True
        elif self.options is not None:
            self.serves, self.ready = True, self.serves

    @property
    def alive(self):
        return self.code is None

    @property
    def role(self):
        if self.options is None:
            return ""
        return "alone" if self.options.place is None else self.options.place.role


class FakeFleet:
    """A fleet with its reloader; it is also what the processes share."""

    def __init__(self, workers=1, *, broker=False, at_once=1 << 10):
        self.now_s = 100.0
        self.processes = []
        self.cleared = []
        self.states = []
        self.refusing = False
        self.fleet = Fleet(workers, self, DRAIN_S, broker=broker, at_once=at_once)
        self.reloader = Reloader(self.fleet, DRAIN_S, self.states.append)
        self.update()

    def start(self):
        if self.refusing:
            return None
        self.processes.append(FakeProcess())
        return self.processes[-1]

    def options(self, role, row, fronts, *, announce):
        place = None if role == "alone" else Place(role, row, 3, 10, "/private", fronts=fronts)
        return ServeOptions(ListenAddress("127.0.0.1", 8080), 5, announce=announce, place=place)

    def clear_row(self, row):
        self.cleared.append(row)

    def update(self, after_s=0.0):
        self.now_s += after_s
        self.fleet.update(self.now_s)
        self.reloader.update(self.now_s)

    def stop(self):
        self.fleet.stop(self.now_s)
        self.update()

    def reload(self):
        self.reloader.request(self.now_s)
        self.update()

    def die(self, process, code):
        process.code = code
        self.update()

    @property
    def alive(self):
        return [each for each in self.processes if each.alive]

    def serving(self, role="alone"):
        """Return the processes of a role that live and were not told to end."""
        return [each for each in self.alive if each.role == role and not set(each.signals) - {signal.SIGHUP}]

    def settle(self):
        """Let everything that lives get ready, and everything that was told to end do so, until nothing changes."""
        for _ in range(200):
            for each in self.alive:
                each.report()
                if {signal.SIGTERM, signal.SIGUSR1} & set(each.signals):
                    each.code = 0
            self.update(0.5)
