"""A stream of the GPU, and a kernel on it that ends when a test says so."""

from __future__ import annotations

import ctypes
import mmap
import struct

import pytest

from conformance.cuda.kernels import POLL
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER, LaunchConfig


@pytest.fixture
def flag(gpu):
    """A word of host memory that kernels can poll."""
    word = ctypes.c_uint32.from_buffer(mmap.mmap(-1, mmap.PAGESIZE))  # which keeps the page for as long as it lives
    gpu.register(ctypes.addressof(word), mmap.PAGESIZE)
    yield word
    gpu.unregister(ctypes.addressof(word))


@pytest.fixture
def stream(gpu):
    opened = gpu.open_stream()
    yield opened
    gpu.close_stream(opened)


@pytest.fixture
def poll(gpu, flag, stream):
    """Start a kernel that ends when the flag is set."""
    loaded = gpu.load(parse(POLL), NEVER)
    address = struct.pack("<Q", ctypes.addressof(flag))
    yield lambda: gpu.launch(loaded, "poll", LaunchConfig((1, 1, 1), (1, 1, 1)), [address], (), stream, NEVER)
    flag.value = 1
    gpu.synchronize(stream, NEVER)
    gpu.unload(loaded)
