"""Judges for the guest room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorwasm.errors import TensorWasmError


def typed_error_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> TensorWasmError | None:
    """Call a function that either works or raises one of our errors, in words fit for people; return the error.

    Any other exception passes through and fails the test.
    """
    caught = None
    try:
        function(*args, **kwargs)
    except TensorWasmError as error:
        caught = error
    if caught is not None:
        assert caught.message.isprintable(), caught.message
        assert 0 < len(caught.message) < 700, len(caught.message)
    return caught
