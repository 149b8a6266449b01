"""Options, and input and output, without Typer, whose import takes longer than a command that must start quickly.

The command's signature declares them once. `parse` reads plain command lines; for help and for all others `for_typer`
translates the signature for Typer.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TextIO

from tensorwasm.errors import InvalidArgs, OutputClosed, TensorWasmError


class Argument(NamedTuple):
    """A positional argument, as help names and describes it."""

    metavar: str
    help: str


class Option(NamedTuple):
    """An option."""

    help: str
    metavar: str | None = None  # name of the value in help; None for the name of its type
    flag: str = ""  # name of the option; empty for that of the parameter
    min: int | None = None  # least value of a number


Module = Annotated[Path, Argument(metavar="FILE", help="The module, a .wasm file; - reads standard input.")]
Arguments = Annotated[
    list[str] | None, Argument(metavar="ARG", help="After --: arguments that the guest sees as its argv.")
]
Export = Annotated[str | None, Option(help="Function to call; without it _start, and where there is none, main.")]
Args = Annotated[str, Option(metavar="JSON", help='Its arguments, a JSON array: [1, 2.5, "NaN", 9007199254740993].')]
Env = Annotated[list[str] | None, Option(metavar="NAME=VALUE", help="A variable the guest sees.")]

_READERS: Final[Mapping[Any, tuple[re.Pattern[str], Callable[[str], Any]]]] = {
    str: (re.compile(r".*", re.DOTALL), str),
    Path: (re.compile(r".*", re.DOTALL), Path),
    int: (re.compile(r"[0-9]{1,9}", re.ASCII), int),
    float: (re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII), float),
}


def parse(command: Callable[..., object], words: Sequence[str]) -> dict[str, Any] | None:
    """Return the keyword arguments of a command line, or None for a line that Typer must read.

    Args:
        command: has as its parameters a path and a list of texts, annotated with `Argument`, or neither, and options,
            annotated with `Option`: texts, paths, numbers, lists of texts, and flags that are False by default.
        words: the words after its name.
    """
    arguments, options = _split(typing.get_type_hints(command, include_extras=True))
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
        pattern, read = _READERS[str if kind is list else kind]
        if not pattern.fullmatch(value) or (option.min is not None and read(value) < option.min):
            return None
        if kind is list:
            given.setdefault(name, []).append(value)
        else:
            given[name] = read(value)
    named = _name(taken, arguments)
    return None if named is None else given | named


def _name(taken: list[str], arguments: list[str]) -> dict[str, Any] | None:
    """Return positional arguments by name, or None if there are too few or too many."""
    if not arguments:
        return None if taken else {}
    if not taken or not all(taken):
        return None
    first, rest = arguments
    return {first: Path(taken[0])} | ({rest: taken[1:]} if taken[1:] else {})


def _split(hints: Mapping[str, Any]) -> tuple[list[str], dict[str, tuple[str, Option, Any]]]:
    """Return the names of the arguments, and name, declaration and bare type of the options by flag."""
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
    """Return a command with its signature translated for Typer."""

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        return command(**given)

    return with_parameters(run, inspect.signature(command, eval_str=True).parameters.values())


def with_parameters(command: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> Callable[..., Any]:
    """Return a command after giving it these parameters, by keyword and translated, in the places that Typer reads."""
    keywords = [
        each.replace(annotation=_translate(each.annotation), kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters
    ]
    command.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in keywords}
    return command


def _translate(hint: Any) -> Any:
    """Return an annotation of ours as one of Typer's, and any other unchanged."""
    import typer  # noqa: PLC0415 - its import is what this module avoids

    declared = getattr(hint, "__metadata__", (None,))[0]
    if not isinstance(declared, Argument | Option):
        return hint
    if isinstance(declared, Argument):
        return Annotated[hint.__origin__, typer.Argument(metavar=declared.metavar, help=declared.help)]
    flags = (declared.flag,) if declared.flag else ()
    return Annotated[
        hint.__origin__, typer.Option(*flags, metavar=declared.metavar, help=declared.help, min=declared.min)
    ]


def read_bytes(file: Path, limit_bytes: int, too_long: TensorWasmError, *, stdin: bool = False) -> bytes:
    """Return the content of a file; with `stdin`, ``-`` is standard input.

    Raises:
        InvalidArgs: the file cannot be read.
        TensorWasmError: `too_long`, if there are more bytes than the limit.
    """
    try:
        if stdin and str(file) == "-":
            data = sys.stdin.buffer.read(limit_bytes + 1)
        else:
            with file.open("rb") as opened:
                data = opened.read(limit_bytes + 1)
    except (OSError, ValueError) as error:
        raise InvalidArgs(f"{str(file)!r} cannot be read: {getattr(error, 'strerror', 'no such path')}") from None
    if len(data) > limit_bytes:
        raise too_long
    return data


def write_bytes(stream: TextIO, data: bytes) -> None:
    """Write bytes at once, in order with the text of the stream; raise OutputClosed if that fails."""
    try:
        stream.flush()
        stream.buffer.write(data)
        stream.buffer.flush()
    except OSError as error:
        raise OutputClosed(f"the output cannot be written: {error.strerror}") from error


def read_variables(pairs: Sequence[str]) -> dict[str, str]:
    """Return variables by name, or raise InvalidArgs if one is not NAME=VALUE."""
    split = [pair.partition("=") for pair in pairs]
    if bad := [name for name, equals, _ in split if not (name and equals)]:
        raise InvalidArgs(f"--env takes NAME=VALUE, not {bad[0][:64]!r}")
    return {name: value for name, _, value in split}


def without_none(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
