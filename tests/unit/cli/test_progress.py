import io

from tensorwasm.cli import progress as module


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_what_ends_soon_shows_nothing(monkeypatch):
    monkeypatch.setattr(module.time, "monotonic", iter([0.0, 0.5, 0.9]).__next__)
    terminal = Terminal()
    with module.progress("working", terminal) as tell:
        tell(1, 2)
        tell(2, 2)
    assert terminal.getvalue() == ""


def test_what_takes_long_shows_how_far_it_is(monkeypatch):
    begun = iter([0.0, 1.5])
    monkeypatch.setattr(module, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(begun, 2.0))}))
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with module.progress("working", terminal) as tell:
        tell(1, 2)
        tell(2, 2)
    assert "working" in terminal.getvalue()
    assert "100 %" in terminal.getvalue()


def test_nothing_is_shown_where_nobody_looks(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0)
    stream = io.StringIO()
    with module.progress("working", stream) as tell:
        tell(1, 2)
    assert stream.getvalue() == ""


def test_waiting_shows_that_something_goes_on_and_takes_it_away(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    terminal = Terminal()
    with module.waiting("saving", terminal):
        while "saving" not in terminal.getvalue():
            pass
    shown = terminal.getvalue()
    assert shown.rindex("\x1b[2K") > shown.rindex("saving")


def test_waiting_is_silent_where_nobody_looks_or_it_ends_soon():
    for stream in (io.StringIO(), Terminal()):
        with module.waiting("saving", stream):
            pass
        assert stream.getvalue() == ""
