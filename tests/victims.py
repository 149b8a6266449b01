"""The processes of a server that a test kills: which there are, and what each does."""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

WEIGHTS = {"supervisor": 1, "primary": 3, "front": 4, "broker": 1, "worker": 2, "template": 1, "worker template": 1}
"""How often which process of several is killed, by what it does."""

ALONE = {"server": 6, "worker": 4, "template": 1, "worker template": 1}
"""Likewise where one process serves alone."""

PAUSE_S = 0.01

_SOCKETS = {"front": 2, "primary": 3, "broker": 1, "server": 2}
"""How many of the supervisor's sockets a process has until it leaves, that where it asks for workers among them."""

_ROLES = {"alone": "server", "workers": "worker template"}
"""Roles of processes whose names say something else."""


def children(process):
    """Return the processes that a process has started."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def birth_of(process):
    """Return when a process began, which tells it from others that get its number later; None if it has ended."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else int(fields[18])


def kill(process):
    """Kill a process that may just have ended; do nothing then.

    Its number may be that of a thread by now, of any process: `os.kill` would kill that process.
    """
    with suppress(OSError):
        handle = os.pidfd_open(process)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def by_role(supervisor):
    """Return the processes of a server's supervisor by what they do, and the workers of its templates.

    One that leaves is left out, and one that has been forked and has no name yet counts as another template.
    """
    sockets, found = _sockets(supervisor), {"supervisor": [supervisor], "worker": []}
    for each in children(supervisor):
        name = _name(each).removeprefix("tw-")
        role = _ROLES.get(name, name)
        if "template" in role or len(_sockets(each) & sockets) == _SOCKETS.get(role):
            found.setdefault(role, []).append(each)
        found["worker"] += children(each) if role == "worker template" else []
    return found


def choose(supervisor, chance, role=None):
    """Return what is killed next, a process of a role if there is one now, else any; and what it does."""
    found = by_role(supervisor)
    weights = ALONE if "server" in found else WEIGHTS
    roles = [each for each in weights if found.get(each)]
    if role not in roles:
        role = chance.choices(roles, [weights[each] for each in roles])[0]
    return role, chance.choice(found[role])


def descendants(supervisor):
    """Return the processes of a server with the time when each began."""
    own = children(supervisor)
    return {(each, birth_of(each)) for process in own for each in (process, *children(process))}


def survivors(processes, limit_s):
    """Return those of some processes that have not ended within a time."""
    ends_s = time.monotonic() + limit_s
    left = {(process, birth) for process, birth in processes if birth is not None}
    while left and time.monotonic() < ends_s:
        left = {(process, birth) for process, birth in left if birth_of(process) == birth}
        threading.Event().wait(PAUSE_S)
    return [process for process, _ in left]


def _name(process):
    with suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text().strip()
    return ""


def _sockets(process):
    found = set()
    with suppress(OSError):
        for each in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                if int(each.name) > 2:
                    found.add(str(each.readlink()))
    return {each for each in found if each.startswith("socket:")}
