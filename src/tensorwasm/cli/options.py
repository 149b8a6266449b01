"""Options of a command that must start quickly: declared without Typer, whose import takes longer than such a command.

The command's signature is the one place where they are. `for_typer` makes of it what Typer reads, which knows help and
says what is wrong; `parse` reads the plain command lines, those that leave nothing to say, and gives up on all others.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple


class Argument(NamedTuple):
    """A positional argument.

    Attributes:
        metavar: how help calls it.
        help: one sentence for people.
    """

    metavar: str
    help: str


class Option(NamedTuple):
    """An option.

    Attributes:
        help: one sentence for people.
        metavar: how help calls its value, None for the name of its type.
        flag: its name, empty for that of the parameter.
        min: least value of a number.
    """

    help: str
    metavar: str | None = None
    flag: str = ""
    min: int | None = None


_READERS: Final[Mapping[Any, tuple[re.Pattern[str], Callable[[str], Any]]]] = {
    str: (re.compile(r".*", re.DOTALL), str),
    int: (re.compile(r"[0-9]{1,9}", re.ASCII), int),
    float: (re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII), float),
}


def parse(command: Callable[..., object], words: Sequence[str]) -> dict[str, Any] | None:
    """Read a command line.

    Args:
        command: whose parameters are annotated with `Argument` and `Option`: first a path, then a list of texts, which
            are its arguments; its options are texts, numbers, lists of texts, and flags that are False unasked.
        words: what follows its name.

    Returns:
        Its keyword arguments; None for a command line that Typer has to look at.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    (first, rest), options = _split(hints)
    given: dict[str, Any] = {}
    left, taken = list(words), []
    while left:
        word = left.pop(0)
        if word == "--":
            taken += left
            break
        if not word.startswith("-") or word == "-":
            taken.append(word)
            continue
        flag, equals, value = word.partition("=")
        if flag not in options:
            return None
        name, option, kind = options[flag]
        if kind is bool:
            if equals:
                return None
            given[name] = True
            continue
        if not equals:
            if not left or left[0].startswith("-"):
                return None
            value = left.pop(0)
        item = str if kind is list else kind
        pattern, read = _READERS[item]
        if not pattern.fullmatch(value) or (option.min is not None and read(value) < option.min):
            return None
        if kind is list:
            given.setdefault(name, []).append(value)
        else:
            given[name] = read(value)
    if not taken or not all(taken):
        return None
    return given | {first: Path(taken[0])} | ({rest: taken[1:]} if taken[1:] else {})


def _split(hints: Mapping[str, Any]) -> tuple[list[str], dict[str, tuple[str, Option, Any]]]:
    """Return the names of the arguments, and the options by flag: name, declaration and bare type."""
    arguments: list[str] = []
    options: dict[str, tuple[str, Option, Any]] = {}
    for name, hint in hints.items():
        declared = getattr(hint, "__metadata__", (None,))[0]
        if isinstance(declared, Argument):
            arguments.append(name)
        elif isinstance(declared, Option):
            kinds = [kind for kind in typing.get_args(hint.__origin__) if kind is not type(None)]
            kind = kinds[0] if typing.get_origin(hint.__origin__) is not None and kinds else hint.__origin__
            options[declared.flag or f"--{name.replace('_', '-')}"] = (name, declared, typing.get_origin(kind) or kind)
    return arguments, options


def for_typer(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command as Typer takes it: with its own declarations in the place of ours."""
    hints = typing.get_type_hints(command, include_extras=True)

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        return command(**given)

    kept = inspect.signature(command).parameters.values()
    parameters = [
        each.replace(annotation=_translate(hints[each.name]), kind=inspect.Parameter.KEYWORD_ONLY) for each in kept
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _translate(hint: Any) -> Any:
    import typer  # noqa: PLC0415 - what this module is there to avoid

    declared = hint.__metadata__[0]
    if isinstance(declared, Argument):
        return Annotated[hint.__origin__, typer.Argument(metavar=declared.metavar, help=declared.help)]
    flags = (declared.flag,) if declared.flag else ()
    return Annotated[
        hint.__origin__, typer.Option(*flags, metavar=declared.metavar, help=declared.help, min=declared.min)
    ]
