"""The parent's side of asks for kernels, from a process that does its worst."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import pytest

from tensorwasm.errors import CapacityExhausted
from tensorwasm.runtime.workers.conversation.conversation import Conversation
from tensorwasm.runtime.workers.frames import (
    PART_BYTES,
    PROTOCOL,
    AskFrame,
    AskPartFrame,
    BrokenFrame,
    PlanAskFrame,
    SetupFrame,
)
from tensorwasm.runtime.workers.kernels.room import ASKS, ASKS_EACH, PLANS_EACH
from tensorwasm.runtime.workers.process import Patience
from tensorwasm.values import MIB

if sys.platform == "win32":
    pytest.skip("workers need Linux or macOS", allow_module_level=True)

SETUP = SetupFrame(PROTOCOL, "emulator", None, None, True, False, "guarded", 1, 1.0)


class Owner:
    """Answers what it is told to, at once."""

    def __init__(self, answer):
        self.answer = answer
        self.texts = []

    def want(self, talk, frame, text):
        self.texts.append(text)
        if self.answer is not None:
            talk.answer(frame.ask, self.answer)


class Talk:
    """A conversation with a process that has calls of some tenants."""

    def __init__(self, answer, tenants=("ann",)):
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.owner = Owner(answer)
        process = SimpleNamespace(link=self.ours)
        self.talk = Conversation(process, SETUP, self.owner, None, Patience())
        self.talk.introduced = True
        for number, tenant in enumerate(tenants):
            self.talk.flights[number] = SimpleNamespace(request=SimpleNamespace(tenant=tenant))
            self.talk._tenants.add(tenant)

    def say(self, *frames):
        """Take what the process says, then send as much as it takes."""
        for frame in frames:
            self.talk._take(frame)
        self.talk._outbox.flush(self.ours)

    def say_each(self, parts):
        """Say pairs of frames in turn; return how many were taken before the process was to be ended."""
        for number, frames in enumerate(parts):
            try:
                self.say(*frames)
            except BrokenFrame:
                return number
        return None

    def close(self):
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def open_talk():
    made = []

    def make(*given, **named):
        made.append(Talk(*given, **named))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ask(number, tenant="ann", size_bytes=1):
    return AskFrame(number, tenant, "k", (9, 0), "narrow", size_bytes)


@pytest.mark.parametrize("answer", [bytes(MIB), CapacityExhausted("?" * 4000)])
def test_answers_that_are_not_read_count_as_asks(open_talk, answer):
    talk = open_talk(answer)
    taken = talk.say_each((ask(number), AskPartFrame(number, b"x")) for number in range(1, 10_000))
    assert taken is not None
    if isinstance(answer, bytes):
        assert taken == ASKS_EACH.kernels


def test_a_process_that_reads_its_answers_may_ask_on(open_talk):
    talk = open_talk(b"a kernel")
    for number in range(1, 10 * ASKS.kernels):
        talk.say(ask(number), AskPartFrame(number, b"x"))
        assert talk.theirs.recv(1 << 16)
    assert len(talk.owner.texts) == 10 * ASKS.kernels - 1


def test_texts_that_never_end_are_bounded(open_talk):
    tenants = [f"tenant{number}" for number in range(100)]
    talk = open_talk(None, tenants)
    most = ASKS_EACH.text_bytes // 2
    wanted = enumerate((tenant for tenant in tenants for _ in range(2)), start=1)
    taken = talk.say_each(
        (ask(number, tenant, most), AskPartFrame(number, bytes(PART_BYTES))) for number, tenant in wanted
    )
    assert taken is not None
    assert taken * most == ASKS.text_bytes
    assert not talk.owner.texts


@pytest.mark.parametrize(
    "frames",
    [
        [ask(1), ask(1)],
        [ask(1, "nobody")],
        [AskPartFrame(1, b"x")],
        [ask(1), AskPartFrame(1, b"xx")],
        [ask(1), AskPartFrame(1, b"x"), AskPartFrame(1, b"x")],
        [ask(number) for number in range(1, ASKS_EACH.kernels + 2)],
    ],
)
def test_a_process_that_does_not_keep_to_the_protocol_is_ended(open_talk, frames):
    with pytest.raises(BrokenFrame):
        open_talk(None).say(*frames)


def test_a_plan_is_asked_for_beside_the_calls_of_its_tenant(open_talk):
    talk = open_talk(b"a plan")
    talk.talk.flights.clear()
    talk.say(ask(1), AskPartFrame(1, b"x"), PlanAskFrame(2, "ann", 2), AskPartFrame(2, b"yz"))
    assert talk.owner.texts == [b"yz"]  # nobody waits for the kernel any more
    with pytest.raises(BrokenFrame):
        talk.say(PlanAskFrame(3, "bob", 1))


def test_plans_have_room_of_their_own(open_talk):
    talk = open_talk(None)
    for number in range(1, PLANS_EACH.kernels + 1):
        talk.say(PlanAskFrame(number, "ann", 1))
    talk.say(ask(50))
    with pytest.raises(BrokenFrame):
        talk.say(PlanAskFrame(51, "ann", 1))
