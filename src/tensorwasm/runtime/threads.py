"""`Threads`: calls, each on a thread of its own, which it may hold for as long as its listener makes it wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tensorwasm.errors import CapacityExhausted, GuestTrap
from tensorwasm.guest.engine.yielding import be_courteous
from tensorwasm.runtime.blocking import run_here
from tensorwasm.runtime.call import Call
from tensorwasm.runtime.ticket import Ticket
from tensorwasm.runtime.work import Work

THREADS: Final = 256


class Threads:
    """Runs calls on threads, started when they are needed. Any thread may use it.

    Args:
        threads: most calls at a time; more wait.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tensorwasm-call", initializer=be_courteous)
        self._tickets: set[Ticket] = set()

    def submit(self, make: Callable[[], Call]) -> Ticket:
        """Make a call and run it; return at once. Cancelling ends its guest at its next loop or call.

        Args:
            make: returns the call; made on the thread that runs it.

        Raises:
            CapacityExhausted: the system has no thread left, or this is closed.
        """
        work = Work()
        ticket = Ticket(work.stop)
        self.run(make, ticket, work)
        return ticket

    def run(self, make: Callable[[], Call], ticket: Ticket, work: Work) -> None:
        """Do what `submit` does for a ticket that there is.

        Raises:
            CapacityExhausted: the system has no thread left, or this is closed; the ticket is cancelled.
        """
        self._tickets.add(ticket)
        ticket.call_when_done(self._tickets.discard)
        try:
            self._pool.submit(run_call, make, ticket, work)
        except RuntimeError as error:
            ticket.cancel()
            raise CapacityExhausted(f"no thread for the call: {error}") from None

    def end(self) -> None:
        """End what runs. A guest that its listener makes wait ends once it does no more."""
        for ticket in tuple(self._tickets):
            ticket.stop()

    def close(self) -> None:
        """Let what was taken end, and release the threads."""
        self._pool.shutdown()


def run_call(make: Callable[[], Call], ticket: Ticket, work: Work) -> None:
    """Make a call on this thread, and give its ticket the outcome."""
    if work.stopped:
        ticket.settle(GuestTrap("the call was stopped before it began", "cancelled"))
        return
    try:
        ticket.settle(run_here(make(), announce=work.stop_with))
    except GuestTrap as error:
        _ = error.backtrace  # its lines are looked up here, and not on the thread that takes the outcome
        ticket.settle(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this ticket's outcome
        ticket.settle(error)
    finally:
        work.forget()
