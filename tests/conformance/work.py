"""Small pieces of asynchronous work for a puppet: kernels whose order shows, naps, copies."""

from __future__ import annotations

import struct
from functools import cached_property

from fakes.argv import encode_argv
from strategies.kernels import AFFINE, ASTRAY, NAP
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.guest.imports.argv import NumberArg, WindowArg

WORD_AT = 1 << 16
"""Where a word of guest memory lies that no helper of the puppet touches."""
WORD = WindowArg(WORD_AT, 4)
NOBODYS = (-1, 1 << 40, 2**63 - 1, -(2**63))
"""Numbers that no stream, event, graph, buffer or kernel has."""


def u32(value):
    return NumberArg("u32", struct.pack("<I", value & 0xFFFF_FFFF))


def u64(value):
    return NumberArg("u64", struct.pack("<Q", value))


class Work:
    """Gives a puppet's streams something to do. Kernels are loaded when first needed.

    Args:
        puppet: under `wasi:cuda/host@0.3.0`.
    """

    def __init__(self, puppet):
        self.puppet = puppet

    @cached_property
    def affine_kernel(self):
        return self._load(AFFINE, b"affine")

    @cached_property
    def nap_kernel(self):
        return self._load(NAP, b"nap")

    def affine(self, factor, term, stream=0, at=WORD):
        """Start ``word = word * factor + term``; return the code."""
        return self.puppet.begin(self.affine_kernel, encode_argv([at, u32(factor), u32(term)]), stream)

    def warm_up(self, stream):
        """Load the kernels and have the guest's memory reached: a GPU that is busy makes both wait."""
        assert self.nap(0, stream) == 0
        assert self.affine(1, 0, stream) == 0
        assert self.puppet.stream_sync(stream) == 0

    def nap(self, seconds, stream=0):
        """Keep a stream busy; return the code."""
        return self.puppet.begin(self.nap_kernel, encode_argv([u64(round(seconds * 1e9))]), stream)

    def stray(self, stream=0):
        """Start a kernel that breaks a rule; return the code. For the emulator: a GPU would be lost to the process."""
        return self.puppet.begin(self._load(ASTRAY, b"astray"), encode_argv([WORD]), stream)

    @property
    def word(self):
        """The word of guest memory; setting it writes there."""
        return struct.unpack("<I", self.puppet.get(WORD_AT, 4))[0]

    @word.setter
    def word(self, value):
        self.puppet.put(WORD_AT, struct.pack("<I", value))

    def buffer(self, data):
        """Return a new device buffer that holds the data."""
        handle = self.puppet.alloc(len(data), 0)
        assert handle > 0, self.puppet.error()
        self.puppet.put(WORD_AT + 4096, data)
        assert self.puppet.memcpy_h2d(handle, 0, WORD_AT + 4096, len(data)) == 0
        return handle

    def contents(self, handle, length):
        """Return the start of a device buffer."""
        assert self.puppet.memcpy_d2h(WORD_AT + 4096, handle, 0, length) == 0
        return self.puppet.get(WORD_AT + 4096, length)

    def place(self, handle, offset=0):
        """Return the argument record for a place in a buffer."""
        return BufferOffset(handle, offset)

    def _load(self, text, entry):
        kernel = self.puppet.load(text, entry)
        assert kernel > 0, self.puppet.error()
        return kernel


def chain(steps, start=0):
    """Return what a word is after affine steps, in their order."""
    for factor, term in steps:
        start = (start * factor + term) & 0xFFFF_FFFF
    return start
