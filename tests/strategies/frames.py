"""Frames between parent and worker, and bytes that are nearly frames."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from tensorwasm.runtime.workers import frames, wire
from tensorwasm.values import MAX_WEIGHT

INT64 = (1 << 63) - 1
identities = st.integers(1, INT64)
counts = st.integers(0, INT64)
names = st.text(max_size=20)
words = st.text(max_size=64)
tenants = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
parts = st.binary(min_size=1, max_size=300)
seconds = st.floats(0, 1e9)
arguments = st.one_of(
    st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(allow_nan=False), names, st.none()
)
results = st.one_of(st.integers(-(1 << 63), INT64), st.floats(allow_nan=False))


def few(strategy):
    return st.lists(strategy, max_size=4).map(tuple)


invocations = st.builds(
    frames.InvokeFrame,
    request=identities,
    target=identities,
    export=st.none() | names,
    args=few(arguments),
    argv=st.none() | few(names),
    env=few(st.tuples(names, names)),
    stdin=st.none() | identities,
    input=st.none() | identities,
    deadline_s=st.none() | seconds,
    gpu_bytes=st.none() | counts,
    stream=st.booleans(),
)

targets = st.builds(
    frames.TargetFrame,
    target=identities,
    module=identities,
    name=names,
    cuda=st.booleans(),
    weight=st.integers(1, MAX_WEIGHT),
    directories=few(st.tuples(names, names, st.booleans())),
    tenant=tenants,
    limits=st.tuples(counts, counts, counts, counts, seconds, counts, counts),
    memory_kind=st.none() | st.sampled_from(["auto", "staged", "pinned", "managed", "vmm"]),
)

to_worker = st.one_of(
    st.builds(
        frames.SetupFrame,
        protocol=counts,
        device=words,
        multiprocessors=st.none() | identities,
        place=st.none() | st.tuples(identities, few(identities)),
        jit=st.booleans(),
        places=identities,
        beat_s=seconds,
    ),
    st.builds(frames.BlobFrame, identities, counts),
    st.builds(frames.BlobPartFrame, identities, parts),
    st.builds(frames.ForgetFrame, identities),
    targets,
    invocations,
    st.builds(frames.CancelFrame, identities, st.booleans()),
    st.builds(frames.StopFrame),
    st.builds(frames.CreditFrame, identities, st.integers(1, frames.WINDOW)),
)

from_worker = st.one_of(
    st.builds(
        frames.ReadyFrame,
        protocol=counts,
        version=words,
        kind=st.sampled_from(["emulator", "cuda"]),
        ordinal=counts,
        name=names,
        compute_capability=st.tuples(counts, counts),
        ptx_version=st.tuples(counts, counts),
        memory_bytes=counts,
        multiprocessors=counts,
        max_shared_bytes=counts,
        concurrent_managed_access=st.booleans(),
        driver=names,
    ),
    st.builds(frames.UnfitFrame, words, names),
    st.builds(frames.BeatFrame, identities, few(st.builds(frames.Charge, tenants, counts, counts))),
    st.builds(frames.OutputFrame, identities, st.sampled_from(["stdout", "stderr", "chunk"]), parts),
    st.builds(
        frames.DoneFrame,
        request=identities,
        export=names,
        values=few(results),
        result_types=few(st.sampled_from(["i32", "i64", "f32", "f64"])),
        exit_code=st.integers(0, (1 << 32) - 1),
        elapsed_s=seconds,
        gpu=st.none() | st.builds(frames.GpuUsage, few(counts), st.booleans()),
        stdout_truncated=st.booleans(),
        stderr_truncated=st.booleans(),
        device_s=seconds,
    ),
    st.builds(
        frames.FailedFrame,
        identities,
        words,
        names,
        st.dictionaries(words, words | counts, max_size=3),
        few(st.builds(frames.TrapFrame, counts, names, counts, names, counts)),
        st.none() | st.builds(frames.OffloadUsage, counts, counts, seconds, counts, few(counts), few(names)),
    ),
    st.builds(frames.SickFrame, names),
    st.builds(frames.WishFrame, st.dictionaries(tenants, st.integers(1, MAX_WEIGHT), max_size=3)),
)


@st.composite
def nearly_frames(draw):
    """Bytes that begin as a worker's frames do: a known kind, any length, any body."""
    code = draw(st.sampled_from(sorted(wire.FROM_WORKER)) | st.integers(0, 255))
    body = draw(st.binary(max_size=60) | from_worker.map(lambda frame: wire.encode(frame)[5:]))
    length = draw(st.just(len(body)) | st.integers(0, (1 << 32) - 1))
    return struct.pack(">BI", code, length) + body
