"""`Readiness`: checks that must all hold for a server to be ready; each is made once at a time, however many ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from tensorwasm.errors import DatabaseUnavailable, NotReady

READY_S: Final = 2.0
"""In which a check must have answered."""

Check = Callable[[], Awaitable[object]]
"""Returns if it holds, and raises why not otherwise."""


class Readiness:
    """Whether a server takes requests and can serve them. For one event loop.

    Anybody may ask, a token or none: so a thousand who ask cost a check no more than one.

    Args:
        checks: by a word for what is checked, in the order in which they are looked at.
    """

    def __init__(self, checks: Mapping[str, Check]) -> None:
        """Ask nothing yet."""
        self._checks = dict(checks)
        self._asking: dict[str, asyncio.Future[object]] = {}
        self._loading: threading.Thread | None = None

    def load(self, work: Callable[[], None]) -> None:
        """Have something loaded on another thread, before which this is not ready. What fails there is ready too.

        A server that is told to stop does not wait for it.
        """
        self._loading = threading.Thread(target=work, name="tensorwasm-loading", daemon=True)
        self._loading.start()

    async def require(self) -> None:
        """Return once every check has answered that it holds.

        Raises:
            NotReady: what requests need is still being loaded.
            TensorWasmError: what the first check raises that does not hold.
            DatabaseUnavailable: one does not answer in time; the message has its word.
        """
        if self._loading is not None and self._loading.is_alive():
            raise NotReady("compiled host functions are being made or loaded")
        for word, check in self._checks.items():
            await self._require(word, check)

    async def _require(self, word: str, check: Check) -> None:
        if word not in self._asking:
            asked = self._asking[word] = asyncio.ensure_future(check())
            asked.add_done_callback(lambda asked: self._answered(word, asked))
        done, _ = await asyncio.wait((self._asking[word],), timeout=READY_S)
        if not done:
            raise DatabaseUnavailable(f"the {word} does not answer in time")
        done.pop().result()

    def _answered(self, word: str, asked: asyncio.Future[object]) -> None:
        del self._asking[word]
        if not asked.cancelled():
            asked.exception()  # whoever still waits is told; nobody may
