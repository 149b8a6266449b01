from dataclasses import replace

import pytest
from hypothesis import given
from msgspec import structs

from strategies.requests import nearly_requests, requests
from tensorwasm.errors import InvalidArgs, StdinTooLarge
from tensorwasm.guest.sandbox.wasi_io import Directory
from tensorwasm.runtime import Grants
from tensorwasm.runtime.executor.request import NAME_CHARACTERS, STREAM_BYTES, TEXT_BYTES, Request, check_request
from tensorwasm.runtime.workers.child.calls import Target, make_request
from tensorwasm.runtime.workers.conversation.flight import make_invoke, make_target
from tensorwasm.runtime.workers.wire import TO_WORKER, Splitter, encode
from tensorwasm.values import Limits


def carry(request):
    """Return the frames of a request as a worker reads them, and as they were sent."""
    sent = make_target(request, 1, 2), make_invoke(request, 1, 1, 3, 4, None, stream=False)
    return list(Splitter(TO_WORKER).feed(b"".join(map(encode, sent)))), list(sent)


@given(requests)
def test_every_valid_request_arrives_unchanged(request_):
    check_request(request_)
    (target, call), _ = carry(request_)
    arrived = make_request(call, Target.of(target, request_.module), request_.stdin, request_.input)
    check_request(arrived)
    limits = replace(request_.limits, wall_s=float(request_.limits.wall_s))
    assert repr(arrived) == repr(structs.replace(request_, limits=limits, deadline_s=None))
    assert (arrived.module, arrived.stdin, arrived.input) == (request_.module, request_.stdin, request_.input)


@given(nearly_requests())
def test_an_arbitrary_request_is_refused_or_arrives(request):
    try:
        check_request(request)
    except (InvalidArgs, StdinTooLarge):
        return
    read, sent = carry(request)
    assert list(map(encode, read)) == list(map(encode, sent))


FULL = "x" * (NAME_CHARACTERS - 9)  # with what is counted for an item, a whole number of them fills a request
FILLING = (FULL,) * (TEXT_BYTES // NAME_CHARACTERS - 1) + (FULL[9:],)


@pytest.mark.parametrize(
    "fields",
    [
        {"argv": FILLING},
        {"args": FILLING},
        {"args": (1.5,) * (TEXT_BYTES // 9 - 1)},
        {"env": tuple(("", text[9:]) for text in FILLING)},
        {"grants": Grants(False, tuple(map(Directory, FILLING[::2], FILLING[1::2])))},
    ],
    ids=["argv", "text", "numbers", "env", "folders"],
)
def test_the_largest_request_fits_its_frame_and_a_larger_one_is_refused(fields):
    largest = Request(b"", name="", **fields)
    check_request(largest)
    read, sent = carry(largest)
    assert read == sent
    with pytest.raises(InvalidArgs, match="together"):
        check_request(Request(b"", name="x" * 9, **fields))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"module": bytearray(b"any")}, "module is bytes"),
        ({"module": b"abc", "limits": Limits(module_bytes=2)}, "module has more than 2"),
        ({"stdin": "text"}, "stdin is bytes"),
        ({"input": bytes(STREAM_BYTES + 1)}, "input has more"),
        ({"args": (1 << 64,)}, "args"),
        ({"args": ([1],)}, "args"),
        ({"args": "text"}, "args is a tuple"),
        ({"name": "x" * (NAME_CHARACTERS + 1)}, "name"),
        ({"export": "\ud800"}, "export"),
        ({"env": (("a",),)}, "pairs"),
        ({"tenant": ""}, "tenant"),
        ({"tenant": "ann\n"}, "tenant"),
        ({"memory_kind": "anywhere"}, "memory_kind"),
        ({"gpu_bytes": -1}, "gpu_bytes"),
        ({"gpu_bytes": True}, "gpu_bytes"),
        ({"deadline_s": "1"}, "deadline_s"),
        ({"limits": Limits(memory_bytes=-1)}, "limits.memory_bytes"),
        ({"limits": Limits(wall_s=0)}, "limits.wall_s"),
        ({"limits": Limits(wall_s=float("nan"))}, "limits.wall_s"),
        ({"limits": None}, "limits"),
        ({"grants": ("cuda",)}, "grants"),
        ({"grants": Grants(cuda=1)}, "grants"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_refusal_names_the_field(fields, words):
    with pytest.raises(InvalidArgs, match=words):
        check_request(Request(**{"module": b""} | fields))
