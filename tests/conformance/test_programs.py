"""Whatever a guest starts in whatever streams, its words are in the end what they would be one step after the other."""

from __future__ import annotations

import struct

import pytest
from hypothesis import HealthCheck, example, given, settings

from conformance.puppet import Puppet
from conformance.work import WORD_AT, Work
from oracles.streams import Words
from strategies.streams import STREAMS, Borrow, Copy, Grow, Record, Step, Wait, programs
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.guest.imports.argv import WindowArg


class Runner:
    """Runs a program on a puppet."""

    def __init__(self, puppet):
        self.puppet, self.work = puppet, Work(puppet)
        assert self.work.affine_kernel > 0
        self.buffer = self.work.buffer(bytes(4 * STREAMS))
        self.streams = [0, *(puppet.stream_create() for _ in range(STREAMS - 1))]
        self.expected = Words()
        self.do = {
            Step: self.step,
            Copy: self.copy,
            Borrow: self.borrow,
            Record: self.record,
            Wait: self.wait,
            Grow: lambda _: puppet.grow(1) > 0,
        }

    def run(self, program):
        for piece in [*program, Wait(None)]:
            assert self.do[type(piece)](piece), (piece, self.puppet.error())
            self.expected.do(piece)
            if isinstance(piece, Wait):
                self.compare(range(STREAMS) if piece.stream is None else [piece.stream])
        contents = struct.unpack(f"<{STREAMS}I", self.work.contents(self.buffer, 4 * STREAMS))
        assert list(contents) == self.expected.buffer

    def compare(self, streams):
        words = struct.unpack(f"<{STREAMS}I", self.puppet.get(WORD_AT, 4 * STREAMS))
        for stream in streams:
            assert words[stream] == self.expected.memory[stream]

    def step(self, piece):
        at = (
            BufferOffset(self.buffer, 4 * piece.stream) if piece.in_buffer else WindowArg(WORD_AT + 4 * piece.stream, 4)
        )
        return self.work.affine(piece.factor, piece.term, self.streams[piece.stream], at) == 0

    def copy(self, piece):
        at, offset, stream = WORD_AT + 4 * piece.stream, 4 * piece.stream, self.streams[piece.stream]
        if piece.inward:
            return self.puppet.memcpy_h2d_async(self.buffer, offset, at, 4, stream) == 0
        return self.puppet.memcpy_d2h_async(at, self.buffer, offset, 4, stream) == 0

    def borrow(self, piece):
        owner, borrower = self.streams[piece.owner], self.streams[piece.borrower]
        at = WindowArg(WORD_AT + 4 * piece.owner, 4)
        event = self.puppet.event_create()
        return event > 0 and not any(
            (
                self.puppet.event_record(event, owner),
                self.puppet.stream_wait_event(borrower, event),
                self.work.affine(piece.factor, piece.term, borrower, at),
                self.puppet.event_record(event, borrower),
                self.puppet.stream_wait_event(owner, event),
                self.puppet.event_destroy(event),
            )
        )

    def record(self, piece):
        stream = self.streams[piece.stream]
        begun = self.puppet.graph_begin(stream) == 0 and all(self.do[type(each)](each) for each in piece.body)
        graph = self.puppet.graph_end(stream)
        replayed = [self.puppet.graph_launch(graph, stream) for _ in range(piece.replays)]
        return begun and graph > 0 and not any(replayed) and self.puppet.graph_destroy(graph) == 0

    def wait(self, piece):
        if piece.stream is None:
            return self.puppet.sync() == 0
        stream = self.streams[piece.stream]
        return self.puppet.stream_sync(stream) == 0 and self.puppet.stream_query(stream) == 0


@pytest.mark.parametrize("memory", ["auto", "pinned"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs)
@example(program=[Grow(), Step(0, 1, 5, False), Record(1, (Step(1, 1, 1, False),), 2), Grow(), Wait(1)])
@example(program=[Step(0, 0, 7, False), Borrow(0, 1, 2, 1), Borrow(0, 2, 3, 1), Copy(0, True), Wait(0)])
def test_programs_leave_what_they_would_one_step_after_the_other(device, compiled, memory, program, guarded):
    with Puppet(device, compiled=compiled, guarded=guarded, memory=memory) as puppet:
        Runner(puppet).run(program)
