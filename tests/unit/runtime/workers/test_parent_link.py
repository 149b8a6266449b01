"""The worker's end of a connection: what is posted waits for nobody, and is sent in order all the same."""

from __future__ import annotations

import socket
import sys
import threading

import pytest

from tensorwasm.runtime.workers.child.parent_link import ParentLink
from tensorwasm.runtime.workers.frames import SickFrame, StopFrame
from tensorwasm.runtime.workers.wire import encode

if sys.platform == "win32":
    pytest.skip("workers need Linux or macOS", allow_module_level=True)

LIMIT_S = 60.0


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(LIMIT_S)
        yield ours, ParentLink(theirs)


def receive(link, size_bytes):
    data = b""
    while len(data) < size_bytes and (part := link.recv(1 << 16)):
        data += part
    return data


def fill(line):
    """Post until the other side takes no more; return what was posted."""
    posted = b""
    while not line.stalled:
        part = b"%08d" % len(posted) * 1024
        line.post(part)
        posted += part
    return posted


def test_what_is_posted_arrives(ends):
    ours, line = ends
    assert line.post(b"one")
    assert line.post(b"two")
    assert receive(ours, 6) == b"onetwo"


def test_a_full_socket_keeps_nobody_waiting_and_all_arrives_in_order(ends):
    ours, line = ends
    posted = fill(line)
    assert not line.post(b"more")
    drain = threading.Thread(target=line.drain)
    drain.start()
    assert receive(ours, len(posted) + 4) == posted + b"more"
    drain.join(LIMIT_S)
    assert line.post(b"!")
    assert receive(ours, 1) == b"!"


def test_a_frame_that_is_sent_follows_what_was_posted(ends):
    ours, line = ends
    posted, frame = fill(line), SickFrame("lost")
    sender = threading.Thread(target=line.send, args=(frame,))
    sender.start()
    assert receive(ours, len(posted) + len(encode(frame))) == posted + encode(frame)
    sender.join(LIMIT_S)


def test_many_threads_send_whole_frames(ends):
    ours, line = ends
    count, threads = 200, 4

    def work(index):
        for _ in range(count):
            if index % 2:
                line.send(SickFrame(str(index)))
            elif not line.post(encode(SickFrame(str(index)))):
                line.drain()

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for each in workers:
        each.start()
    size = len(encode(SickFrame("0")))
    data = receive(ours, size * count * threads)
    for each in workers:
        each.join(LIMIT_S)
    found = [data[at : at + size] for at in range(0, len(data), size)]
    assert sorted(found) == sorted(encode(SickFrame(str(index))) for index in range(threads) for _ in range(count))


def test_what_is_posted_to_one_who_has_gone_is_dropped(ends):
    ours, line = ends
    ours.close()
    for _ in range(3):
        line.post(b"x" * 4096)
    with pytest.raises(OSError):  # noqa: PT011 - whichever the system has for it
        line.send(StopFrame())


def test_reading_waits_only_if_it_is_to(ends):
    ours, line = ends
    assert list(line.read()) == []
    ours.sendall(encode(StopFrame()) * 2)
    assert list(line.read(wait=True)) == [StopFrame()] * 2
    ours.close()
    assert line.read(wait=True) is None
