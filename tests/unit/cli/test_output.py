"""Tables and progress bars."""

import io
from types import SimpleNamespace

from tensorwasm.cli import output as module


def test_a_table_is_neither_wrapped_nor_cut(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    module.print_table([{"id": "a" * 300, "name": "[bold]x"}, {"id": "b", "name": "\u4e16"}], ("id", "name"), "(none)")
    assert capsys.readouterr().out == f"ID{' ' * 300}NAME\n{'a' * 300}  [bold]x\nb{' ' * 301}\u4e16\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_short_work_shows_no_bar(monkeypatch):
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=iter([0.0, 0.5, 0.9]).__next__))
    terminal = Terminal()
    with module.progress("working", terminal) as tell:
        tell(1, 2)
        tell(2, 2)
    assert terminal.getvalue() == ""


def test_long_work_shows_its_progress(monkeypatch):
    begun = iter([0.0, 1.5])
    monkeypatch.setattr(module, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(begun, 2.0))}))
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with module.progress("working", terminal) as tell:
        tell(1, 2)
        tell(2, 2)
    assert "working" in terminal.getvalue()
    assert "100 %" in terminal.getvalue()


def test_no_bar_is_shown_unless_the_stream_is_a_terminal(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0)
    stream = io.StringIO()
    with module.progress("working", stream) as tell:
        tell(1, 2)
    assert stream.getvalue() == ""


def test_waiting_shows_a_bar_and_removes_it(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    terminal = Terminal()
    with module.waiting("saving", terminal):
        while "saving" not in terminal.getvalue():
            pass
    shown = terminal.getvalue()
    assert shown.rindex("\x1b[2K") > shown.rindex("saving")


def test_waiting_shows_nothing_for_short_work_or_off_a_terminal():
    for stream in (io.StringIO(), Terminal()):
        with module.waiting("saving", stream):
            pass
        assert stream.getvalue() == ""
