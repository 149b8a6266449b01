"""A guest that is saved and restored at any moment cannot tell."""

from __future__ import annotations

import copy
import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fakes.world import ONE, World, launch_compiled, read, word
from oracles.sessions import assert_sparse, contents, flattened
from strategies.kernels import AFFINE, FILL
from strategies.sessions import SIZES
from tensorwasm.errors import (
    InvalidArgs,
    InvalidHandle,
    InvalidKernel,
    InvalidSnapshot,
    QuotaExceeded,
)
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.device.limits import SessionLimits
from tensorwasm.gpu.native.layout import BUFFER_ROWS
from tensorwasm.saved import SavedKernel
from tensorwasm.values import NEVER, Deadline

LIMITS = SessionLimits(
    allocation_bytes=100_000, allocations=4, device_bytes=200_000, kernels=3, streams=3, events=3, graphs=2
)
TEXTS = {"fill": FILL, "affine": AFFINE}
WORDS = 16
"""Bytes at the start of a buffer that kernels work on, a word a stream."""

few = st.integers(0, 4)
values = st.integers(0, (1 << 32) - 1)


@dataclass
class Model:
    """What a guest knows of its session."""

    buffers: dict[int, bytearray] = field(default_factory=dict)
    kernels: dict[int, str] = field(default_factory=dict)
    streams: list[int] = field(default_factory=lambda: [0])
    events: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    next_handle: int = 1
    next_kernel: int = 0
    next_event: int = 1
    next_stream: int = 1


class CaptureModel(RuleBasedStateMachine):
    """A guest that is saved and restored at any moment, here or on another device, and cannot tell."""

    @initialize(layout=st.booleans())
    def start(self, layout):
        self.world = World(devices=2)
        self.layout = layout
        self.at = 0
        self.session = self.world.open(0, layout=layout, limits=LIMITS)
        self.model = Model()
        self.saved = []
        self.allocate(100)
        self.load("fill")

    def teardown(self):
        if hasattr(self, "world"):
            self.check(self.session.capture(NEVER))
            self.session.close()
            self.world.close()

    def expect(self, use, *errors):
        """Use the session; return whether it did as asked, which it does unless an error is expected."""
        if not errors:
            self.result = use()
            return True
        with pytest.raises(errors):
            use()
        return False

    def pick(self, items, which):
        return items[which % len(items)] if items else None

    # ------------------------------------------------------------------------------------------- a guest

    @rule(size=SIZES)
    def allocate(self, size):
        model = self.model
        held = sum(map(len, model.buffers.values()))
        errors = (QuotaExceeded,) if len(model.buffers) >= 4 or held + size > 200_000 else ()
        if self.expect(lambda: self.session.buffers.allocate(size), *errors):
            assert self.result == model.next_handle
            model.next_handle += 1
            model.buffers[self.result] = bytearray(size)

    @rule(which=few)
    def free(self, which):
        handle = self.pick(list(self.model.buffers), which)
        if handle is not None:
            self.session.buffers.free(handle, NEVER)
            del self.model.buffers[handle]
            self.model.gone.append(handle)

    @rule(which=few)
    def use_what_has_gone(self, which):
        handle = self.pick([*self.model.gone, 99], which)
        self.expect(lambda: self.session.buffers.read(handle, memoryview(bytearray(1)), NEVER), InvalidHandle)
        kernel = max(self.model.kernels, default=0) + 1000
        self.expect(lambda: self.session.kernels.unload(kernel, NEVER), InvalidKernel)

    @rule(which=few, data=st.binary(max_size=40), offset=st.sampled_from([0, 3, 90, 4090, 4096, 60_000]))
    def write(self, which, data, offset):
        handle = self.pick(list(self.model.buffers), which)
        if handle is None:
            return
        content = self.model.buffers[handle]
        errors = (InvalidArgs,) if offset + len(data) > len(content) else ()
        if self.expect(lambda: self.session.buffers.write(handle, data, NEVER, offset), *errors):
            content[offset : offset + len(data)] = data

    @rule(which=few)
    def look(self, which):
        handle = self.pick(list(self.model.buffers), which)
        if handle is not None:
            assert read(self.session, handle, len(self.model.buffers[handle])) == self.model.buffers[handle]

    @rule(entry=st.sampled_from(sorted(TEXTS)))
    def load(self, entry):
        model = self.model
        errors = (QuotaExceeded,) if len(model.kernels) >= 3 else ()
        if self.expect(lambda: self.session.kernels.load(TEXTS[entry], entry, NEVER), *errors):
            assert model.next_kernel in {0, self.result}
            model.next_kernel = self.result + 1
            model.kernels[self.result] = entry

    @rule(which=few)
    def unload(self, which):
        kernel = self.pick(list(self.model.kernels), which)
        if kernel is not None:
            self.session.kernels.unload(kernel, NEVER)
            del self.model.kernels[kernel]

    @rule(which=few, kernel=few, stream=few, how=st.sampled_from(["launch", "submit", "compiled"]), value=values)
    def launch(self, which, kernel, stream, how, value):
        model = self.model
        kernel = self.pick(list(model.kernels), kernel)
        handle = self.pick([each for each, content in model.buffers.items() if len(content) >= WORDS], which)
        if kernel is None or handle is None:
            return
        index = stream % len(model.streams) if how == "submit" else 0
        scalars = [value] if model.kernels[kernel] == "fill" else [value, value ^ 5]
        arguments = [BufferOffset(handle, 4 * index), *map(word, scalars)]
        if how == "compiled":
            device = self.world.devices[self.at]
            if not self.layout or not launch_compiled(device, self.session.layout, kernel, handle, 0, scalars):
                return
        elif how == "submit":
            self.session.kernels.submit(kernel, ONE, lambda: arguments, None, NEVER, model.streams[index])
        else:
            self.session.kernels.launch(kernel, ONE, lambda: arguments, None, NEVER)
        self.effect(model.buffers[handle], 4 * index, model.kernels[kernel], scalars)

    def effect(self, content, at, entry, scalars):
        (old,) = struct.unpack_from("<I", content, at)
        new = scalars[0] if entry == "fill" else (old * scalars[0] + scalars[1]) & 0xFFFF_FFFF
        struct.pack_into("<I", content, at, new)

    @rule()
    def open_stream(self):
        errors = (QuotaExceeded,) if len(self.model.streams) > 3 else ()
        if self.expect(self.session.streams.open, *errors):
            assert self.result >= self.model.next_stream
            self.model.next_stream = self.result + 1
            self.model.streams.append(self.result)

    @precondition(lambda self: len(self.model.streams) > 1)
    @rule(which=few)
    def close_stream(self, which):
        self.session.streams.synchronize(NEVER)  # the others' words change places
        self.session.streams.close(self.model.streams.pop(1 + which % (len(self.model.streams) - 1)), NEVER)

    @rule()
    def open_event(self):
        errors = (QuotaExceeded,) if len(self.model.events) >= 3 else ()
        if self.expect(self.session.events.open, *errors):
            assert self.result == self.model.next_event
            self.model.next_event += 1
            self.model.events.append(self.result)

    @precondition(lambda self: self.model.events)
    @rule(which=few, stream=few, what=st.sampled_from(["record", "wait", "synchronize", "close"]))
    def use_event(self, which, stream, what):
        event, stream = self.pick(self.model.events, which), self.pick(self.model.streams, stream)
        match what:
            case "record":
                self.session.events.record(event, stream)
            case "wait":
                self.session.events.wait(stream, event)
            case "synchronize":
                self.session.events.synchronize(event, NEVER)
            case _:
                self.session.events.close(event)
                self.model.events.remove(event)

    # ----------------------------------------------------------------------------------- saved and restored

    @rule(polled=st.booleans())
    def capture(self, polled):
        saved = self.session.capture(Deadline.after(60) if polled else NEVER)
        self.check(saved)
        self.saved.append((saved, copy.deepcopy(self.model)))

    @precondition(lambda self: self.saved)
    @rule(which=few)
    def capture_upon(self, which):
        """Whatever the parent, what is added to it makes the whole."""
        parent, model = self.pick(self.saved, which)
        shared = [handle for handle in model.buffers if handle in self.model.buffers]
        if any(len(model.buffers[handle]) != len(self.model.buffers[handle]) for handle in shared):
            with pytest.raises(InvalidSnapshot):  # of another life than this one: a handle that was given anew there
                self.session.capture(NEVER, parent)
            return
        saved = self.session.capture(NEVER, parent)
        old = {buffer.handle: buffer for buffer in parent.buffers}
        for buffer in saved.buffers:
            assert_sparse(buffer, old.get(buffer.handle))
        self.check(flattened(saved, parent), sparse=False)

    @precondition(lambda self: self.saved)
    @rule(which=few, at=st.integers(0, 1), layout=st.booleans())
    def restore(self, which, at, layout):
        self.session.close()
        saved, model = self.pick(self.saved, which)
        self.at, self.layout = at, layout
        self.session = self.world.open(at, layout=layout, limits=LIMITS)
        self.session.restore(saved, Deadline.after(60))
        self.model = copy.deepcopy(model)
        assert self.session.streams.numbers == tuple([0][: bool(model.buffers)] + model.streams[1:])
        assert all(self.session.events.reached(event) for event in model.events)
        if layout:
            self.check_pad()

    def check_pad(self):
        """Compiled code finds every buffer and kernel that has the row to itself, and every stream."""
        layout = self.session.layout
        for handle, content in self.model.buffers.items():
            row = layout.buffers[handle % BUFFER_ROWS]
            assert (row.handle, row.size_bytes) == (handle, len(content))
        for kernel in self.model.kernels:
            assert layout.kernels[kernel % len(layout.kernels)].id == kernel
        for stream in self.model.streams[1:]:
            assert layout.streams[stream % len(layout.streams)].number == stream
            assert layout.streams[stream % len(layout.streams)].stream != 0

    def check(self, saved, *, sparse=True):
        model = self.model
        assert {buffer.handle: contents(buffer) for buffer in saved.buffers} == model.buffers
        for buffer in saved.buffers if sparse else ():
            assert_sparse(buffer)
        assert saved.kernels == tuple(
            SavedKernel(number, TEXTS[entry], entry) for number, entry in sorted(model.kernels.items())
        )
        assert saved.streams == tuple(model.streams[1:])
        assert saved.events == tuple(model.events)
        following = dict(saved.next_numbers)
        assert following["handle"] == model.next_handle
        assert following["kernel"] == model.next_kernel
        assert following["event"] == model.next_event
        assert following["stream"] >= model.next_stream
        held = self.session.statistics()
        assert held.device_bytes == sum(map(len, model.buffers.values()))
        counts = held.allocations, held.kernels, held.streams, held.events
        assert counts == (len(model.buffers), len(model.kernels), len(model.streams) - 1, len(model.events))


TestCaptureModel = CaptureModel.TestCase
TestCaptureModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
