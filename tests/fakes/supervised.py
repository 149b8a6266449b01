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
        options: what it was started with.
        signals: what it got, in order.
        closed: the supervisor has forgotten it.
    """

    def __init__(self, options):
        self.options = options
        self.reports = self.code = None
        self.serves = self.ready = self.closed = False
        self.signals = []
        self.pid = next(_numbers)

    def look(self):
        """There is nothing to read."""

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
        """Go one step on: serving, ready."""
        self.serves, self.ready = True, self.serves

    @property
    def alive(self):
        return self.code is None

    @property
    def role(self):
        return self.options.role


class FakeFleet:
    """A fleet with its reloader; it is also what the processes share and what starts them.

    Attributes:
        loaded: as that of `Templates`; `settle` loads what a reload has begun.
        completed: how often compiled code was asked for.
        before_compiled: how many processes there were when it was asked for first.
        kept: for each reload that has ended, whether its release was kept.
        broken: no further release can be loaded.
    """

    def __init__(self, workers=1, *, broker=False):
        self.now_s = 100.0
        self.processes = []
        self.cleared = []
        self.states = []
        self.kept = []
        self.completed = self.before_compiled = 0
        self.refusing = self.broken = False
        self.loaded = True
        self.fleet = Fleet(workers, self, self, DRAIN_S, broker=broker)
        self.reloader = Reloader(self.fleet, DRAIN_S, self.states.append)
        self.update()

    def look(self, now_s):
        """There is nothing to see to."""

    def start(self, options):
        if self.refusing:
            return None
        self.processes.append(FakeProcess(options))
        return self.processes[-1]

    def complete(self):
        self.completed += 1
        self.before_compiled = self.before_compiled or len(self.processes)

    def renew(self):
        self.loaded = False
        return not self.refusing

    def keep(self, *, renewed):
        self.kept.append(renewed)
        self.loaded = True

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

    def load(self):
        """Let what a reload has begun load the server, or fail to."""
        if self.loaded is False:
            self.loaded = None if self.broken else True

    @property
    def alive(self):
        return [each for each in self.processes if each.alive]

    def serving(self, role="alone"):
        """Return the processes of a role that live and were not told to end."""
        return [each for each in self.alive if each.role == role and not set(each.signals) - {signal.SIGHUP}]

    def settle(self):
        """Let everything that lives get ready, and everything that was told to end do so, until nothing changes."""
        for _ in range(200):
            self.load()
            for each in self.alive:
                each.report()
                if {signal.SIGTERM, signal.SIGUSR1} & set(each.signals):
                    each.code = 0
            self.update(0.5)
