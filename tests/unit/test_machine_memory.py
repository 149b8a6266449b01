"""What this process may use of the host's memory: `tensorwasm.machine_memory`."""

import sys

import pytest

from tensorwasm import machine_memory
from tensorwasm.values import MIB

GIB = 1024 * MIB
UNLIMITED_V1 = 9223372036854771712


@pytest.fixture
def machine(tmp_path):
    """Return a function that lays out ``proc`` and ``sys`` in a folder and returns it."""

    def lay(cgroup="", mounts="", files=None):
        everything = {
            "proc/meminfo": f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\n",
            "proc/self/cgroup": cgroup,
            "proc/self/mountinfo": mounts,
            **(files or {}),
        }
        for name, text in everything.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return lay


def v2_mount(root="/", point="/sys/fs/cgroup"):
    return f"31 23 0:28 {root} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def v1_mount(root="/", point="/sys/fs/cgroup/memory"):
    return f"36 31 0:33 {root} {point} rw,relatime shared:9 - cgroup cgroup rw,memory\n"


def v2(folder, limit="max", high="max"):
    return {f"{folder}/memory.max": f"{limit}\n", f"{folder}/memory.high": f"{high}\n"}


def v1(folder, limit=UNLIMITED_V1):
    return {f"{folder}/memory.limit_in_bytes": f"{limit}\n"}


def test_without_control_groups_the_machine_is_the_limit(machine):
    root = machine()
    assert machine_memory.limit_bytes(root) == 8 * GIB


def test_the_second_version_s_limit_holds(machine):
    files = v2("sys/fs/cgroup/a", 3 * GIB)
    root = machine("0::/a\n", v2_mount(), files)
    assert machine_memory.limit_bytes(root) == 3 * GIB


def test_an_ancestor_s_limit_holds_too(machine):
    files = v2("sys/fs/cgroup/a", 1 * GIB) | v2("sys/fs/cgroup/a/b", 2 * GIB)
    files |= v2("sys/fs/cgroup/a/b/c")
    root = machine("0::/a/b/c\n", v2_mount(), files)
    assert machine_memory.limit_bytes(root) == 1 * GIB


def test_the_level_where_throttling_begins_is_a_limit(machine):
    root = machine("0::/a\n", v2_mount(), v2("sys/fs/cgroup/a", 3 * GIB, high=2 * GIB))
    assert machine_memory.limit_bytes(root) == 2 * GIB


def test_the_first_version_s_limit_holds(machine):
    files = v1("sys/fs/cgroup/memory/a", 3 * GIB) | v1("sys/fs/cgroup/memory")
    root = machine("4:memory:/a\n0::/\n", v1_mount() + v2_mount(point="/sys/fs/cgroup/unified"), files)
    assert machine_memory.limit_bytes(root) == 3 * GIB


def test_a_container_s_group_is_the_root_of_its_mount(machine):
    files = v1("sys/fs/cgroup/memory", 3 * GIB)
    root = machine("4:memory:/docker/abc\n", v1_mount("/docker/abc"), files)
    assert machine_memory.limit_bytes(root) == 3 * GIB


def test_a_group_outside_of_the_mount_is_known_by_the_mount(machine):
    files = v2("sys/fs/cgroup", 3 * GIB)
    root = machine("0::/../elsewhere\n", v2_mount(), files)
    assert machine_memory.limit_bytes(root) == 3 * GIB


def test_a_mount_point_with_a_space_is_found(machine):
    files = v2("sys/fs/c group/a", GIB)
    root = machine("0::/a\n", v2_mount(point="/sys/fs/c\\040group"), files)
    assert machine_memory.limit_bytes(root) == GIB


def test_empty_and_invalid_files_are_no_limit(machine):
    files = v2("sys/fs/cgroup/a") | {"sys/fs/cgroup/a/memory.max": "", "sys/fs/cgroup/a/memory.high": "what\n"}
    assert machine_memory.limit_bytes(machine("0::/a\nnonsense\n", "nonsense\n" + v2_mount(), files)) == 8 * GIB


@pytest.mark.skipif(sys.platform != "linux", reason="the machine's own files are Linux's")
def test_this_machine_has_memory():
    assert machine_memory.limit_bytes() > MIB
