import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwasm import errors

HOSTILE = st.text(max_size=200) | st.builds(
    "{}{}{}".format,
    st.text(max_size=20),
    st.sampled_from(
        ["\x1b]0;owned\x07", "\r\nerror: forged", "\u202e", "\ud800", "\0", "\x9b31m", "\u2028", "x" * 100_000]
    ),
    st.text(max_size=20),
)


def tree():
    return [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.TensorWasmError)]


def test_every_error_is_drawn_in_the_tree():
    drawing = errors.__doc__ or ""
    assert [c.__name__ for c in tree() if c.__name__ not in drawing] == []


def test_leaves_have_kinds_of_their_own():
    leaves = [c for c in tree() if not c.__subclasses__()]
    kinds = [c.kind for c in leaves if c is not errors.InternalError]
    assert len(set(kinds)) == len(kinds)


def test_status_and_exit_code_follow_the_cause():
    for error in tree():
        if issubclass(error, errors.CallerError):
            assert 400 <= error.http_status < 500
            assert error.exit_code == 2
        else:
            assert error.exit_code in {1, 3, 4, 124, 134}


def test_malformed_ptx_has_a_position():
    error = errors.MalformedPtx("unexpected ';'", 3, 14)
    assert (error.line, error.column) == (3, 14)
    assert error.message == "3:14: unexpected ';'"
    assert errors.MalformedPtx("no .version").message == "no .version"


def test_temporary_refusals_and_outages_are_retryable():
    retryable = {c for c in tree() if c.retryable}
    away = errors.StoreUnavailable, errors.DatabaseUnavailable, errors.StorageFull
    passing = errors.LimitError, errors.DeviceLost, errors.Draining, errors.SessionElsewhere, errors.NotReady
    assert retryable == {c for c in tree() if issubclass(c, (*passing, *away))}


def test_a_device_fault_is_a_lost_device_with_advice():
    fault = errors.DeviceFault("a worker was killed by SIGKILL")
    assert (fault.kind, fault.http_status) == (errors.DeviceLost.kind, 503)
    assert fault.message.startswith("a worker was killed by SIGKILL;")
    assert "may be tried again" in fault.message


def made_of(kind, text):
    """Return an error of a class, with a text wherever its constructor takes one."""
    parameters = list(inspect.signature(kind).parameters.values())
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return kind(text)
    required = [each for each in parameters if each.default is each.empty]
    return kind(*(7 if "int" in str(each.annotation) else text for each in required))


@given(HOSTILE)
@settings(max_examples=30)
@pytest.mark.parametrize("kind", tree(), ids=lambda kind: kind.__name__)
def test_messages_are_printable_and_bounded(kind, text):
    error = made_of(kind, text)
    for shown in (error.message, str(error)):
        assert shown.isprintable()
        assert len(shown) <= 2 * errors.MAX_MESSAGE


@given(HOSTILE, st.lists(HOSTILE, max_size=20))
def test_a_quoted_name_leaves_room_for_the_rest(name, names):
    assert errors.quote(name).isprintable()
    assert len(errors.quote(name)) <= 2 * errors.MAX_NAME + 2
    listed = errors.quote_all(names)
    assert listed.isprintable()
    assert len(listed) <= 10 * (errors.MAX_NAME + 2) + 3


@given(st.text(alphabet=st.characters(codec="ascii", exclude_categories=["C"]), max_size=100))
def test_an_ordinary_text_is_unchanged(text):
    assert errors.plain(text) == text
    assert errors.HostError(text).message == (text or "")
