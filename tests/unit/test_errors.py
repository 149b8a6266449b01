import inspect

from tensorwasm import errors


def tree():
    return [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.TensorWasmError)]


def test_every_error_is_drawn_in_the_tree():
    drawing = errors.__doc__ or ""
    assert [c.__name__ for c in tree() if c.__name__ not in drawing] == []


def test_leaves_have_kinds_of_their_own():
    leaves = [c for c in tree() if not c.__subclasses__()]
    kinds = [c.kind for c in leaves if c is not errors.InternalError]
    assert len(set(kinds)) == len(kinds)


def test_status_and_exit_code_follow_the_fault():
    for error in tree():
        if issubclass(error, errors.CallerError):
            assert 400 <= error.http_status < 500
            assert error.exit_code == 2
        else:
            assert error.exit_code in {1, 3, 4, 124}


def test_a_malformed_ptx_says_where():
    error = errors.MalformedPtx("unexpected ';'", 3, 14)
    assert (error.line, error.column) == (3, 14)
    assert error.message == "3:14: unexpected ';'"
    assert errors.MalformedPtx("no .version").message == "no .version"


def test_what_is_refused_for_now_or_lost_with_a_device_or_a_store_may_be_tried_again():
    retryable = {c for c in tree() if c.retryable}
    passing = errors.LimitError, errors.DeviceLost, errors.StoreUnavailable, errors.DatabaseUnavailable, errors.Draining
    assert retryable == {c for c in tree() if issubclass(c, passing)}


def test_a_device_fault_is_a_lost_device_that_says_so():
    fault = errors.DeviceFault("a worker was killed by SIGKILL")
    assert (fault.kind, fault.http_status) == (errors.DeviceLost.kind, 503)
    assert fault.message.startswith("a worker was killed by SIGKILL;")
    assert "may be tried again" in fault.message
