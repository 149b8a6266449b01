"""Requests, and what is nearly one."""

from __future__ import annotations

from dataclasses import fields, replace

from hypothesis import strategies as st
from msgspec import structs

from tensorwasm.guest.sandbox.wasi_io import Directory
from tensorwasm.runtime.executor.request import MAX_COUNT, NAME_CHARACTERS, Request
from tensorwasm.runtime.invoke.grants import Grants
from tensorwasm.values import MAX_WEIGHT, MEMORY_KINDS, Limits

texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)
counts = st.integers(0, 1 << 40) | st.just(MAX_COUNT)
arguments = st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | texts | st.none()
seconds = st.floats() | st.integers(-10, 10)


def few(strategy):
    return st.lists(strategy, max_size=4).map(tuple)


directories = st.builds(Directory, texts, texts, st.booleans())
grants = st.builds(Grants, st.booleans(), few(directories))
limits = st.builds(
    Limits,
    memory_bytes=counts,
    table_elements=counts,
    module_bytes=st.integers(100, 1000),
    stack_bytes=counts,
    wall_s=st.floats(min_value=0, exclude_min=True) | st.integers(1, 100),
    output_bytes=counts,
    stdin_bytes=st.integers(10, 1000),
)

requests = st.builds(
    Request,
    module=st.binary(max_size=100),
    export=st.none() | texts,
    args=few(arguments),
    name=texts,
    argv=st.none() | few(texts),
    env=few(st.tuples(texts, texts)),
    stdin=st.binary(max_size=10),
    input=st.binary(max_size=10),
    grants=grants,
    tenant=st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    limits=limits,
    deadline_s=st.none() | seconds,
    memory_kind=st.none() | st.sampled_from(MEMORY_KINDS),
    gpu_bytes=st.none() | counts,
    weight=st.integers(1, MAX_WEIGHT),
)

strange = st.one_of(
    arguments,
    st.sampled_from(["\ud800", "x" * (NAME_CHARACTERS + 1), -1, 1 << 63, 1 << 64, -(1 << 63) - 1, 10**400, b"", b"x"]),
    st.sampled_from([{}, [], (), bytearray(b"x"), ("",), (("a", "b"),), (("a",),), ((1, 2),), ([1],), ("\ud800",)]),
    grants,
    limits,
)
"""Values of which most belong in no field, and some in another."""


@st.composite
def nearly_requests(draw):
    """A request with a few fields that hold something else, its own or its limits' or its grants'."""
    request = draw(requests)
    for _ in range(draw(st.integers(1, 2))):
        whole = draw(st.sampled_from([request, request.limits, request.grants]))
        if not isinstance(whole, Request | Limits | Grants):
            continue
        if isinstance(whole, Request):
            changed = {draw(st.sampled_from(whole.__struct_fields__)): draw(strange)}
        else:
            field = draw(st.sampled_from([each.name for each in fields(whole)]))
            name = "limits" if isinstance(whole, Limits) else "grants"
            changed = {name: replace(whole, **{field: draw(strange)})}
        request = structs.replace(request, **changed)
    return request
