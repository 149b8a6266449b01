"""Command lines that are parsed without Typer: as Typer would parse them, or not at all."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.cli.local.run import run
from tensorwasm.cli.local.serving import serve
from tensorwasm.cli.options import Argument, Option, for_typer, parse

SEEN: list[dict[str, object]] = []


def command(
    file: Annotated[Path, Argument("FILE", "A file.")],
    rest: Annotated[list[str] | None, Argument("ARG", "Others.")] = None,
    *,
    text: Annotated[str | None, Option("A text.")] = None,
    two_words: Annotated[int | None, Option("A number.", metavar="N", min=3)] = None,
    folder: Annotated[Path | None, Option("A folder.")] = None,
    share: Annotated[float | None, Option("A part.")] = None,
    each: Annotated[list[str] | None, Option("Texts.", flag="--item")] = None,
    loud: Annotated[bool, Option("A flag.")] = False,
) -> None:
    """Say what was given."""
    SEEN.append(
        {
            "file": file,
            "rest": rest,
            "text": text,
            "two_words": two_words,
            "folder": folder,
            "share": share,
            "each": each,
            "loud": loud,
        }
    )


@functools.cache
def typed():
    app = typer.Typer(add_completion=False)
    app.command()(for_typer(command))
    return typer.main.get_command(app)


def with_typer(words):
    """Return what Typer gives the command, None for a usage error; an empty list is nothing."""
    SEEN.clear()
    try:
        typed().main(list(words), standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "show"):
            raise
        return None
    return {name: value or None for name, value in SEEN[0].items()} if SEEN else None


values = st.sampled_from(
    ["x", "", "3", "2", "12", "1.5", "1e3", "-1", "--", "-", "a=b", " 4", "1_0", "٣", "nan", "é\n"]
)
flags = st.sampled_from(
    ["--text", "--two-words", "--folder", "--share", "--item", "--loud", "--no-loud", "--tex", "-t", "--nope"]
)
words = st.lists(values | flags | st.builds("{}={}".format, flags, values), max_size=7)


@given(words)
def test_parsed_options_equal_those_of_typer(line):
    read = parse(command, line)
    if read is not None:
        SEEN.clear()
        command(**read)
        assert {name: value or None for name, value in SEEN[0].items()} == with_typer(line)


@pytest.mark.parametrize(
    ("line", "given_"),
    [
        (["m.wasm"], {"file": Path("m.wasm")}),
        (["-"], {"file": Path("-")}),
        (["m.wasm", "--export", "f", "--args=[1]"], {"file": Path("m.wasm"), "export": "f", "args": "[1]"}),
        (
            ["--timeout", "0.5", "m.wasm", "--dir", "a::/b:ro", "--dir=c", "--verbose", "--", "--x", "y"],
            {
                "file": Path("m.wasm"),
                "timeout": 0.5,
                "directory": ["a::/b:ro", "c"],
                "verbose": True,
                "arguments": ["--x", "y"],
            },
        ),
    ],
)
def test_plain_lines_of_run_are_parsed_without_typer(line, given_):
    assert parse(run, line) == given_


@pytest.mark.parametrize(
    ("line", "given_"),
    [
        ([], {}),
        (
            ["--addr", "unix:/s", "--data=d", "--token", "a:tenant=1,2", "--token=b", "--workers", "2"],
            {"addr": "unix:/s", "data": Path("d"), "token": ["a:tenant=1,2", "b"], "workers": 2},
        ),
        (["--allow-plaintext-public", "--device", "cuda:1"], {"allow_plaintext_public": True, "device": "cuda:1"}),
    ],
)
def test_plain_lines_of_serve_are_parsed_without_typer(line, given_):
    assert parse(serve, line) == given_


@pytest.mark.parametrize(
    "line",
    [["--help"], ["here"], ["--", "here"], ["--workers", "0"], ["--workers", "x"], ["--no-allow-plaintext-public"]],
)
def test_help_and_invalid_lines_of_serve_are_left_to_typer(line):
    assert parse(serve, line) is None


@pytest.mark.parametrize(
    "line", [[], ["--help"], ["m.wasm", "--exprot", "f"], ["m.wasm", "--timeout"], ["m.wasm", "--memory", "x"], [""]]
)
def test_help_and_invalid_lines_are_left_to_typer(line):
    assert parse(run, line) is None
