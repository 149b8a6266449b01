"""Names of functions and aliases, and references to versions."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tensorwasm.errors import InvalidName, NotFound

MAX_NAME_BYTES: Final = 256

_ALIAS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,63}")
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")


class Reference(NamedTuple):
    """A function, by UUID or name, and a version's number or alias; the current version for None and an empty alias."""

    function: str
    number: int | None
    alias: str


def is_id(text: str) -> bool:
    """Return whether a text is a UUID in lower case, as functions and sessions have."""
    return _ID.fullmatch(text) is not None


def checked_name(name: str) -> str:
    """Return a function's name; raise InvalidName if it is blank, over 256 bytes or has control characters."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName("a name is Unicode text") from None
    if not 1 <= size_bytes <= MAX_NAME_BYTES or not name.strip():
        raise InvalidName(f"a name has 1 to {MAX_NAME_BYTES} bytes, and is not blank")
    if any(character < " " or "\x7f" <= character <= "\x9f" for character in name):
        raise InvalidName("a name has no control characters")
    return name


def checked_alias(alias: str) -> str:
    """Return an alias, a letter or underscore and at most 63 letters, digits, ``.``, ``_``, ``-``; else InvalidName."""
    if not _ALIAS.fullmatch(alias):
        raise InvalidName("an alias is a letter or _, and at most 63 letters, digits, '.', '_' and '-'")
    return alias


def parse_reference(text: str) -> tuple[Reference, ...]:
    """Parse ``FUNCTION``, ``FUNCTION@VERSION`` or ``FUNCTION@ALIAS``, where FUNCTION is an ID or a name.

    Return one or two readings, because a name may contain ``@``; the first whose function exists is meant. NotFound is
    raised if there can be no such function, version or alias.
    """
    head, at, which = text.rpartition("@")
    if is_id(text) or not at:
        return (_function(text),)
    found = _version(head, which)
    if is_id(head):
        if found is None:
            raise NotFound("there is no such version of this function")
        return (found,)
    return (_function(text),) if found is None else (_function(text), found)


def _function(text: str) -> Reference:
    try:
        return Reference(checked_name(text), None, "")
    except InvalidName:
        raise NotFound("there is no such function") from None


def _version(function: str, which: str) -> Reference | None:
    """Return the reference to a version or alias; None if the text names neither."""
    if _NUMBER.fullmatch(which):
        return Reference(function, int(which), "")
    return Reference(function, None, which) if _ALIAS.fullmatch(which) else None
