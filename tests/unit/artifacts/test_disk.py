"""The store on disk: dying at every instruction, no room at every instruction, and who may read what."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from fakes import store_worker
from fakes.calls import CountedCalls, Died, DyingCalls, FailingCalls
from oracles.store import Model, seen
from tensorwasm.artifacts.backends.disk import DiskBackend, SystemCalls
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.store import ContentStore
from tensorwasm.artifacts.values import Quota
from tensorwasm.errors import ArtifactCorrupt, StoreUnavailable, UnsafeFile

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="artifacts on disk need flock")

HOUR_NS = 3600 * 10**9
A, B, C, NEW = b"a" * 50, b"b" * 50, b"c" * 50, b"new" * 50


def open_store(folder, calls=None, now_ns=HOUR_NS, quota=Quota()):  # noqa: B008 - a value
    return ContentStore(DiskBackend(folder, calls), quota, now_ns=lambda: now_ns)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Three artifacts of which the last refers to the first, two names, and all of it an hour old."""
    folder = tmp_path_factory.mktemp("prepared") / "store"
    store = open_store(folder, now_ns=0)
    first = store.put("t", "module", A)
    store.bind("t", "second", store.put("t", "code", B))
    store.bind("t", "third", store.put("t", "snapshot", C, [first]))
    store.unbind("t", "second")
    return folder


def renew(store):
    raise_first(store.renew(["snapshot"], lambda *_: NEW).findings)


def collect(store):
    raise_first(store.collect(60).findings)


def raise_first(findings):
    """Raise what work on the whole store only reports."""
    for finding in findings:
        raise StoreUnavailable(finding.detail)


ACTIONS = {
    "first put": lambda store: store.put("new tenant", "module", NEW),
    "put": lambda store: store.put("t", "module", NEW),
    "put again": lambda store: store.put("t", "module", A),
    "delete": lambda store: store.delete("t", blake3(B)),
    "bind": lambda store: store.bind("t", "fourth", blake3(B)),
    "bind elsewhere": lambda store: store.bind("t", "third", blake3(B)),
    "unbind": lambda store: store.unbind("t", "third"),
    "collect": collect,
    "renew": renew,
}


def state(folder):
    """Return all that can be seen of a store, after making sure that it is sound and holds nothing in vain."""
    store = open_store(folder)
    assert [finding for finding in store.verify().findings if finding.bad] == []
    found = {tenant: seen(store, tenant) for tenant in store.tenants()}
    store.collect(10 * 365 * 24 * 3600)  # of the leftovers only
    for tenant in store.tenants():
        home = folder / tenant.replace(" ", "_20")
        assert len(list((home / "blobs").iterdir())) == len(found[tenant][0])
        assert {path.name for path in home.iterdir()} - {"draft-catalog"} == {"lock", "catalog", "blobs", "aside"}
    return found


def outcomes(prepared, tmp_path, action):
    """Return the state before and after an action, and the number of calls that it takes."""
    folder = shutil.copytree(prepared, tmp_path / "whole")
    calls = CountedCalls()
    before = state(folder)
    store = open_store(folder, calls)
    calls.log.clear()
    action(store)
    assert calls.opened == {}
    return before, state(folder), len(calls.log)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("action", ACTIONS.values(), ids=list(ACTIONS))
def test_dying_at_any_call_leaves_the_old_state_or_the_new_one(prepared, tmp_path, action, late):
    before, after, count = outcomes(prepared, tmp_path, action)
    assert (before == after) == (action is ACTIONS["put again"])
    found = []
    for at in range(1, 1000):
        folder = shutil.copytree(prepared, tmp_path / str(at))
        calls = DyingCalls(at, late=late)
        try:
            action(open_store(folder, calls))
        except Died:
            found.append(state(folder))
        else:
            assert state(folder) == after
        shutil.rmtree(folder)
        if not calls.dead:
            break
    assert len(found) >= count
    assert all(one in (before, after) for one in found)
    changes = [one == after for one in found]
    assert changes == sorted(changes)  # at one moment it is done, and then it stays done


@pytest.mark.parametrize("action", ACTIONS.values(), ids=list(ACTIONS))
def test_no_room_at_any_call_is_reported_and_leaves_the_old_state_or_the_new_one(prepared, tmp_path, action):
    before, after, _ = outcomes(prepared, tmp_path, action)
    for at in range(1, 1000):
        folder = shutil.copytree(prepared, tmp_path / str(at))
        calls = FailingCalls(at)
        said = failure(action, folder, calls)
        assert calls.opened == {}
        assert state(folder) in ([before, after] if said else [after])
        assert not said or ("No space left" in said and str(tmp_path) not in said)
        shutil.rmtree(folder)
        if not calls.failed and calls._at > 0:
            break


def failure(action, folder, calls):
    """Return what a store says of an action that failed."""
    try:
        action(open_store(folder, calls))
    except StoreUnavailable as error:
        return error.message
    return ""


def test_bytes_are_on_the_disk_before_the_catalog_has_them(tmp_path):
    calls = CountedCalls()
    store = open_store(tmp_path / "store", calls)
    store.put("t", "module", A)
    calls.log.clear()
    store.put("t", "module", NEW)
    home = tmp_path / "store" / "t"
    names = [(name, Path(arguments[0]).name) for name, *arguments in calls.log if name in {"sync", "rename"}]
    (key,) = [name.removeprefix("draft-") for call, name in names if call == "rename" and name != "draft-catalog"]
    assert names == [
        ("sync", f"draft-{key}"),
        ("rename", f"draft-{key}"),
        ("sync", "blobs"),
        ("sync", "draft-catalog"),
        ("rename", "draft-catalog"),
        ("sync", home.name),
    ]


def test_files_of_a_live_writer_are_no_leftovers(tmp_path):
    backend = DiskBackend(tmp_path / "store")
    key = f"{bytes(32).hex()}-{bytes(8).hex()}"
    with backend.write("t", key, b"not told of yet"):
        assert backend.leftovers("t") == ()
        assert DiskBackend(tmp_path / "store").leftovers("t") == ()
    assert backend.leftovers("t") == (key,)


def test_leftovers_cannot_be_listed_before_a_draft_is_locked(tmp_path):
    class Looking(CountedCalls):
        turns: ClassVar = []

        def after(self, name, arguments):
            if name == "open" and "draft-" in arguments[0]:
                lock = os.open(tmp_path / "store" / "t" / "lock", os.O_RDONLY)
                self.turns.append(SystemCalls().lock(lock, wait=False))
                os.close(lock)

    open_store(tmp_path / "store", Looking()).put("t", "module", A)
    assert Looking.turns == [False, False]  # of the bytes and of the catalog


def test_files_and_folders_are_closed_to_other_users(tmp_path):
    os.umask(old := os.umask(0))
    os.umask(0)
    try:
        store = open_store(tmp_path / "store")
        store.bind("t", "main", store.put("t", "module", A))
    finally:
        os.umask(old)
    for path in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600 if path.name == "lock" else 0o400), path


def test_a_folder_or_a_file_that_others_can_write_to_is_not_used(tmp_path):
    folder = tmp_path / "store"
    store = open_store(folder)
    digest = store.put("t", "module", A)
    (blob,) = (folder / "t" / "blobs").iterdir()
    blob.chmod(0o666)
    with pytest.raises(UnsafeFile):
        store.get("t", digest)
    (folder / "t").chmod(0o755)
    with pytest.raises(UnsafeFile):
        open_store(folder).put("t", "module", NEW)
    folder.chmod(0o777)
    with pytest.raises(UnsafeFile):
        open_store(folder)


@pytest.mark.parametrize("name", ["catalog", "blob"])
def test_a_pipe_in_the_place_of_a_file_does_not_block(tmp_path, name):
    store = open_store(tmp_path / "store")
    digest = store.put("t", "module", A)
    (blob,) = (tmp_path / "store" / "t" / "blobs").iterdir()
    path = blob if name == "blob" else tmp_path / "store" / "t" / "catalog"
    path.unlink()
    os.mkfifo(path)
    signal.alarm(20)  # instead of waiting for ever
    try:
        with pytest.raises(UnsafeFile, match="no regular file"):
            open_store(tmp_path / "store").get("t", digest)
        assert not open_store(tmp_path / "store").verify().ok
    finally:
        signal.alarm(0)


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path):
    folder = tmp_path / "store"
    store = open_store(folder)
    digest = store.put("t", "module", A)
    (blob,) = (folder / "t" / "blobs").iterdir()
    (tmp_path / "elsewhere").write_bytes(blob.read_bytes())
    blob.unlink()
    blob.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable):
        store.get("t", digest)
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UnsafeFile):
        open_store(tmp_path / "link")


@pytest.mark.parametrize(
    "change",
    [lambda data: b"", lambda data: data[:-1], lambda data: data + b"\0", lambda data: bytes(len(data))],
    ids=["empty", "cut", "longer", "zeros"],
)
def test_a_damaged_catalog_is_reported_and_nothing_of_it_is_collected(tmp_path, change):
    folder = tmp_path / "store"
    store = open_store(folder)
    digest = store.put("t", "module", A)
    (folder / "t" / "catalog").chmod(0o600)
    (folder / "t" / "catalog").write_bytes(change((folder / "t" / "catalog").read_bytes()))
    fresh = open_store(folder)
    for use in (
        lambda: fresh.get("t", digest),
        lambda: fresh.put("t", "module", NEW),
        lambda: fresh.bind("t", "n", digest),
        lambda: fresh.list("t"),
    ):
        with pytest.raises(ArtifactCorrupt):
            use()
    fresh.put("other", "module", A)
    collected = fresh.collect(0)
    assert [(finding.tenant, finding.state) for finding in collected.findings] == [("t", "corrupt")]
    assert open_store(folder, now_ns=HOUR_NS + 1).collect(0).artifacts == (("other", digest),)
    assert len(list((folder / "t" / "blobs").iterdir())) == 1
    assert [(finding.digest, finding.state) for finding in fresh.verify().findings] == [(None, "corrupt")]


def test_damaged_bytes_are_quarantined_for_a_grace(tmp_path):
    folder = tmp_path / "store"
    store = ContentStore(DiskBackend(folder))
    digest = store.put("t", "code", A)
    (blob,) = (folder / "t" / "blobs").iterdir()
    blob.chmod(0o600)
    blob.write_bytes(b"rot")
    with pytest.raises(ArtifactCorrupt):
        store.get("t", digest)
    assert store.collect(3600).leftovers == 0
    assert [path.read_bytes() for path in (folder / "t" / "aside").iterdir()] == [b"rot"]
    assert store.collect(0).leftovers == 1
    assert list((folder / "t" / "aside").iterdir()) == []


def test_the_time_of_reading_is_recorded_and_nothing_else_changes(tmp_path):
    folder = tmp_path / "store"
    store = ContentStore(DiskBackend(folder))
    digest = store.put("t", "code", A)
    (blob,) = (folder / "t" / "blobs").iterdir()
    os.utime(blob, ns=(0, 0))
    made_ns = store.stat("t", digest).made_ns
    store.get("t", digest)
    assert blob.stat().st_mtime_ns == 0
    assert store.stat("t", digest).used_ns >= made_ns
    assert store.stat("t", digest).made_ns == made_ns


# Processes

FILL = """
import sys
from pathlib import Path
from typing import ClassVar
from tensorwasm.artifacts.store import ContentStore
from tensorwasm.artifacts.backends.disk import DiskBackend
from tensorwasm.artifacts.values import Quota
from tensorwasm.errors import QuotaExceeded

store = ContentStore(DiskBackend(Path(sys.argv[1])), Quota(artifact_bytes=250, count=1000))
print("ready", flush=True)
sys.stdin.readline()
done = 0
for n in range(20):
    try:
        digest = store.put("t", "module", f"{sys.argv[2]}:{n:08}".encode())
        store.bind("t", f"{sys.argv[2]}:{n}", digest)
        store.collect(3600)
        done += 1
    except QuotaExceeded:
        pass
print(done)
"""


def _start(script, *arguments):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_share_one_quota_exactly(tmp_path):
    running = [_start(FILL, tmp_path / "store", letter) for letter in "abc"]
    for process in running:
        assert process.stdout.readline() == "ready\n"
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    done = [int(process.communicate(timeout=60)[0]) for process in running]
    store = open_store(tmp_path / "store")
    assert sum(done) == 25
    assert store.usage("t").artifact_bytes == 250
    assert len(store.names("t")) == 25
    assert store.verify().findings == ()
    assert store.collect(0).leftovers == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_process_that_is_killed_leaves_what_it_had_done_and_at_most_one_step_more(tmp_path, seed):
    folder = tmp_path / "store"
    process = subprocess.Popen(
        [sys.executable, store_worker.__file__, str(folder), str(seed)], stdout=subprocess.PIPE, text=True
    )
    with process:
        for _ in range(7 * seed + 3):
            done = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        done = max([done, *(int(line) for line in process.stdout.read().split("\n")[:-1])])
    assert process.returncode == -signal.SIGKILL
    possible = [store_worker.follow(Model(Quota()), count, seed).seen() for count in (done + 1, done + 2)]
    store = open_store(folder)
    assert seen(store, "t") in possible
    assert [finding for finding in store.verify().findings if finding.bad] == []
    store.collect(10 * 365 * 24 * 3600)
    assert len(list((folder / "t" / "blobs").iterdir())) == store.usage("t").count
