"""The turns that all methods of one session take, and what ends it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from tensorwasm.errors import CallerError, DeviceLost, InvalidArgs, LimitError, QuotaExceeded
from tensorwasm.gpu.launcher import Launcher
from tensorwasm.gpu.limits.permit import NoPermit
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.state.resource_table import ResourceTable

REFUSALS: Final = (CallerError, LimitError, NoPermit)
"""Errors after which all is as before."""


class SessionLock:
    """One method of a session at a time, while it may be used at all.

    Args:
        sheet: disarmed when the session fails.
        holdings: adopt what compiled code loaded, before anything else happens.
        launcher: knows whether a stream records.

    Attributes:
        lock: held for a turn.
        failure: what poisoned the session, or None.
        closed: whether it is closed.
        refused: calls that were over a quota.
        used: whether anything had a turn since the session was as good as new.
    """

    __slots__ = ("_holdings", "_launcher", "_sheet", "closed", "failure", "lock", "refused", "used")

    def __init__(self, sheet: SessionLayoutWriter, holdings: ResourceTable, launcher: Launcher) -> None:
        self._sheet = sheet
        self._holdings = holdings
        self._launcher = launcher
        self.lock = threading.RLock()
        self.failure: BaseException | None = None
        self.closed = False
        self.refused = 0
        self.used = False

    def begin(self, recording: bool) -> None:  # noqa: FBT001 - one caller, on every path of every guest
        """Begin a turn; the lock is held.

        Args:
            recording: whether the turn is given while a stream records.

        Raises:
            InvalidArgs: a stream records.
            DeviceLost: the session is over.
        """
        if self.failure is not None:
            raise DeviceLost(f"this GPU session ended with an earlier failure: {self.failure}")
        if self.closed:
            raise DeviceLost("this GPU session is closed")
        if self._launcher.recording is not None and not recording:
            raise InvalidArgs("while a stream records, there are only launches and copies on it")
        self.used = True
        if self._sheet.loads:
            self._holdings.adopt()

    def judge(self, error: BaseException, harmless: tuple[type[BaseException], ...] = ()) -> None:
        """Tell refusals, after which all is as before, from failures, after which nothing is sure.

        Args:
            error: what a turn raised.
            harmless: errors that are as good as refusals here.
        """
        if isinstance(error, QuotaExceeded):
            self.refused += 1
        if not isinstance(error, (*REFUSALS, *harmless)):
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the session: nothing on it is sure any more."""
        self.failure = error
        self._sheet.disarm()


class _Part(Protocol):
    """A part of a session."""

    _turns: SessionLock


_S = TypeVar("_S", bound=_Part)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Method = Callable[Concatenate[_S, _P], _R]


def in_turn(
    *harmless: type[BaseException], recording: bool = False
) -> Callable[[_Method[_S, _P, _R]], _Method[_S, _P, _R]]:
    """Give a method of a part of a session its turn, and judge what it raises.

    Args:
        harmless: errors that are as good as refusals here.
        recording: whether the method may be used while a stream records.
    """

    def wrap(method: _Method[_S, _P, _R]) -> _Method[_S, _P, _R]:
        @functools.wraps(method)
        def take(self: _S, /, *args: _P.args, **named: _P.kwargs) -> _R:
            turns = self._turns
            with turns.lock:
                turns.begin(recording)
                try:
                    return method(self, *args, **named)
                except BaseException as error:
                    turns.judge(error, harmless)
                    raise

        return take

    return wrap
