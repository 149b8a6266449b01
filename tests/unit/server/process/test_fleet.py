"""The processes of a server: which there are, when another is started, and when the supervisor gives up."""

import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.supervised import DRAIN_S, FakeFleet
from tensorwasm.server.process.fleet import END_S, FIRST_WAIT_S, MAX_VAIN, MAX_WAIT_S, rows_of
from tensorwasm.server.process.reloading import STEP_S


def ready(workers=1):
    made = FakeFleet(workers)
    made.settle()
    return made


def follow(made):
    """Return the seconds after which a process is started in place of a dead one."""
    wait_s = made.fleet.next_s() - made.now_s
    made.update(wait_s)
    return wait_s


@pytest.mark.parametrize("code", [0, 2, 4])
def test_a_server_that_ends_normally_or_refuses_is_not_restarted(code):
    made = ready()
    made.die(made.serving()[0], code)
    assert made.fleet.outcome == code
    assert not made.alive


@pytest.mark.parametrize("code", [1, -9, -11, 137])
def test_a_crashed_server_is_restarted_and_its_address_printed_once(code, capsys):
    made = ready()
    announced = [made.serving()[0].options.announce]
    for _ in range(2):
        made.die(made.serving()[0], code)
        assert follow(made) == pytest.approx(FIRST_WAIT_S)
        made.settle()
        announced.append(made.serving()[0].options.announce)
    assert announced == [True, False, False]
    assert capsys.readouterr().err.count("starting it again") == 2


def test_a_server_that_has_served_is_always_restarted_at_once():
    made = ready()
    for _ in range(100):
        made.die(made.serving()[0], -9)
        assert follow(made) == pytest.approx(FIRST_WAIT_S)
        for _ in range(2):
            made.serving()[0].report()
        made.update()


def test_a_server_killed_before_it_listens_leaves_the_announcement_to_the_next():
    made = FakeFleet()
    announced = []
    for _ in range(3):
        announced.append(made.serving()[0].options.announce)
        made.die(made.serving()[0], -9)
        follow(made)
    made.settle()
    made.die(made.serving()[0], -9)
    follow(made)
    assert announced == [True, True, True]
    assert not made.serving()[0].options.announce


@pytest.mark.parametrize("workers", [1, 2])
def test_the_supervisor_gives_up_on_servers_that_never_serve(workers, capsys):
    made = FakeFleet(workers)
    waits_s = []
    while made.fleet.outcome is None:
        made.die(made.serving("alone" if workers == 1 else "primary")[0], -11)
        if made.fleet.outcome is None and made.fleet.stopping:
            made.settle()
        elif made.fleet.outcome is None:
            waits_s.append(follow(made))
    assert made.fleet.outcome == 1
    assert len(waits_s) == MAX_VAIN - 1
    assert waits_s == sorted(waits_s)
    assert max(waits_s) <= MAX_WAIT_S
    assert "SIGSEGV" in capsys.readouterr().err
    assert not made.alive


def test_a_server_that_served_resets_the_count():
    made = FakeFleet()
    for _ in range(3):
        for _ in range(MAX_VAIN - 1):
            made.die(made.serving()[0], -9)
            follow(made)
        made.settle()
        made.die(made.serving()[0], -9)
        follow(made)
    assert made.fleet.outcome is None


def test_one_that_cannot_be_started_counts_as_one_that_died_before_it_served():
    made = ready()
    made.refusing = True
    for each in made.alive:
        each.code = -9
    made.update()
    while made.fleet.outcome is None:
        follow(made)
    assert made.fleet.outcome == 1


def test_fronts_wait_for_the_primary_at_first_but_not_while_it_is_replaced():
    made = FakeFleet(2)
    assert [each.role for each in made.processes] == ["primary"]
    made.processes[0].report()
    made.update()
    assert [each.role for each in made.processes] == ["primary", "front"]
    made.settle()
    made.die(made.serving("primary")[0], -9)
    made.die(made.serving("front")[0], -9)
    follow(made)
    assert len(made.serving("front")) == 2


def test_what_a_first_answer_does_not_need_comes_behind_it():
    made = FakeFleet(3, broker=True)
    made.processes[0].report()
    made.update()
    assert [each.role for each in made.processes] == ["primary", "front"]
    assert not made.completed, "loading compiled code would hold the first answer up"
    made.processes[1].report()
    made.update()
    assert made.completed == 1
    assert [each.role for each in made.processes[2:]] == ["broker", "front", "front"]
    assert made.before_compiled == 3, "the broker needs no compiled code, and the other fronts do"
    made.processes[1].report()
    made.update()
    assert made.completed == 2, "what was to be compiled at first is there now"
    made.settle()
    assert made.completed == 2


@pytest.mark.parametrize("code", [0, 1, -9])
def test_a_front_that_ends_takes_nobody_with_it(code):
    made = ready(3)
    others = set(made.alive)
    dead = made.serving("front")[1]
    made.die(dead, code)
    made.settle()
    assert len(made.serving("front")) == 3
    assert others - {dead} <= set(made.alive)
    assert made.cleared == [dead.options.place.row]


def test_only_one_front_says_where_the_server_listens():
    assert [each.options.announce for each in ready(3).processes] == [False, True, False, False]


def test_fronts_stop_before_the_primary_which_they_report_to():
    made = ready(2)
    primary, fronts = made.serving("primary")[0], made.serving("front")
    made.stop()
    assert [each.signals for each in (primary, *fronts)] == [[], [signal.SIGTERM], [signal.SIGTERM]]
    made.die(fronts[0], 0)
    assert primary.signals == []
    made.update(DRAIN_S + END_S)
    made.update()
    assert fronts[1].code == -9, "one that hangs does not hold the others up"
    assert primary.signals == [signal.SIGTERM]
    made.die(primary, 0)
    assert made.fleet.outcome == 0


def test_a_second_signal_ends_all_at_once():
    made = ready(2)
    made.stop()
    made.stop()
    assert not made.alive
    assert made.fleet.outcome == 1


def test_a_server_that_dies_while_it_starts_to_stop_says_how():
    made = FakeFleet()
    made.stop()
    made.die(made.processes[0], -15)
    assert made.fleet.outcome == 143


def test_logs_are_opened_again_by_all_that_serve():
    made = ready(2)
    made.fleet.reopen()
    assert {each.role: each.signals for each in made.alive} == {
        "primary": [signal.SIGHUP],
        "front": [signal.SIGHUP],
    }


# ------------------------------------------------------------------------------------------------------------ reloads


def test_a_reload_replaces_each_front_once_its_successor_is_ready_and_the_primary_last():
    made = ready(2)
    old = {role: made.serving(role) for role in ("primary", "front")}
    made.reload()
    made.load()
    order = []
    for _ in range(100):
        for each in sorted(made.alive, key=lambda one: one.role == "primary"):
            each.report()
            if signal.SIGUSR1 in each.signals and each not in order:
                assert sum(one.ready for one in made.serving("front")) >= 2, "there are never fewer that take requests"
                order.append(each)
        if len(order) == 3:
            order[-1].code = 0
        made.update()
    assert order == [*old["front"], *old["primary"]]
    assert all(each.alive for each in old["front"]), "they may take their time"
    assert made.states[-1].ended == made.states[-1].begun == 1
    assert made.states[-1].failed == ""
    made.settle()
    assert set(made.alive).isdisjoint([*old["primary"], *old["front"]])
    assert len(made.alive) == 3
    assert made.kept == [True]


def begin_with_the_broker(made):
    """Let a reload of a fleet replace its broker; return the old one and the new one."""
    (old,) = made.serving("broker")
    made.reload()
    made.load()
    made.update()
    (new,) = (each for each in made.serving("broker") if each is not old)
    assert old.signals == [], "the new one has opened nothing yet"
    new.report()
    made.update()
    assert old.signals == [signal.SIGUSR1], "the new one waits for its socket"
    assert len(made.serving("front")) == 2, "those that come must find that socket"
    new.report()
    made.update()
    return old, new


def ready_with_a_broker():
    made = FakeFleet(2, broker=True)
    made.settle()
    return made


def test_a_reload_begins_with_the_broker_and_leaves_the_old_one_to_its_calls():
    made = ready_with_a_broker()
    old, new = begin_with_the_broker(made)
    while made.states[-1].ended != 1:
        for each in made.alive:
            each.report()
            if signal.SIGUSR1 in each.signals and each is not old:
                each.code = 0
        made.update()
    assert made.states[-1].failed == ""
    made.update(100 * STEP_S)
    assert old.alive, "calls of other processes may be in its workers"
    fronts = {each.pid for each in made.serving("front")}
    made.die(made.serving("primary")[0], -9)
    follow(made)
    assert set(made.serving("primary")[0].options.place.fronts) == fronts, "it is none of those that the primary awaits"
    made.settle()
    assert not old.alive
    assert made.serving("broker") == [new]
    made.stop()
    made.settle()
    assert made.fleet.outcome == 0


def test_a_server_that_stops_during_a_reload_ends_its_old_broker_with_its_last_user():
    made = ready_with_a_broker()
    old, new = begin_with_the_broker(made)
    made.stop()
    assert old.signals == [signal.SIGUSR1]
    for role in ("front", "primary"):
        assert new.signals == []
        for each in made.alive:
            each.code = 0 if each.role == role else None
        made.update()
    assert new.signals == [signal.SIGTERM]
    made.settle()
    assert made.fleet.outcome == 0


def test_a_new_broker_that_dies_with_the_socket_is_followed_by_another():
    made = ready_with_a_broker()
    _, new = begin_with_the_broker(made)
    made.die(new, -9)
    follow(made)
    assert len(made.serving("broker")) == 1
    made.settle()
    assert made.states[-1].failed == ""


@pytest.mark.parametrize("workers", [1, 2])
def test_what_owns_the_database_ends_before_its_successor_begins(workers):
    made, role = ready(workers), "alone" if workers == 1 else "primary"
    old = made.serving(role)[0]
    made.reload()
    for _ in range(10):
        made.update()
    assert old.signals == [], "its successor's code is not loaded yet, and might never be"
    made.load()
    while signal.SIGUSR1 not in old.signals:
        assert old.alive
        for each in made.alive:
            each.report()
        made.update()
    assert made.serving(role) == []
    made.die(old, 0)
    assert len(made.serving(role)) == 1, "at once"
    made.settle()
    assert made.states[-1].failed == ""


def test_a_reload_that_is_asked_for_during_another_follows_it():
    made = ready(2)
    made.reload()
    made.reload()
    made.reload()
    made.settle()
    assert [each.ended for each in made.states if each.ended != each.begun][-1] == 1
    assert made.states[-1].ended == 2


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("code", [1, 2, -9])
def test_a_reload_whose_new_process_dies_is_given_up(workers, code, capsys):
    made = ready(workers)
    before = set(made.alive)
    made.reload()
    made.load()
    made.update()
    if workers == 1:
        made.die(before.pop(), 0)
    made.die(made.processes[-1], code)
    if workers == 1 and code == 2:
        assert made.fleet.stopping, "there is no other process"
        return
    assert "died before it served" in made.states[-1].failed
    assert "the reload is given up" in capsys.readouterr().err
    assert before <= set(made.alive)
    assert made.kept == [False], "what dies later is of the release that works"
    made.settle()
    assert made.fleet.outcome is None
    made.reload()
    made.settle()
    assert made.states[-1].failed == "", "a later one may succeed"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reload_whose_release_cannot_be_loaded_changes_nothing(workers, capsys):
    made = ready(workers)
    made.broken, before = True, set(made.serving() + made.serving("front") + made.serving("primary"))
    made.reload()
    made.settle()
    assert "cannot be loaded" in made.states[-1].failed
    assert "the reload is given up" in capsys.readouterr().err
    assert set(made.alive) == before
    assert made.kept == [False]


def test_a_new_owner_of_the_database_that_dies_in_vain_is_followed_by_another():
    made = ready()
    old = made.serving()[0]
    made.reload()
    made.load()
    made.update()
    made.die(old, 0)
    made.die(made.serving()[0], 1)
    assert made.states[-1].failed
    made.settle()
    assert made.serving()[0].ready


def test_a_reload_whose_new_process_is_never_ready_is_given_up():
    made = ready(2)
    before = made.serving("front")
    made.reload()
    made.update(STEP_S + 2 * DRAIN_S + 1)
    assert "was not ready" in made.states[-1].failed
    assert made.serving("front") == before
    assert made.fleet.outcome is None


def test_a_crash_during_a_reload_lets_the_successor_begin_at_once():
    made = ready(2)
    made.reload()
    successor = made.fleet.slots[1].successor.process
    made.die(made.serving("front")[0], -9)
    assert made.fleet.slots[1].current.process is successor
    made.settle()
    assert made.states[-1].failed == ""


def test_a_stop_during_a_reload_ends_both():
    made = ready(2)
    made.reload()
    made.stop()
    assert "stopped" in made.states[-1].failed
    made.settle()
    assert made.fleet.outcome == 0


def test_reloads_wait_for_rows_of_processes_that_still_drain():
    made = ready(2)
    for _ in range(rows_of(2)):
        made.reload()
        for _ in range(20):
            for each in made.alive:
                each.report()
                if each.role == "primary" and signal.SIGUSR1 in each.signals:
                    each.code = 0
            made.update(0.01)
    rows = [each.options.place.row for each in made.alive]
    assert sorted(rows) == sorted(set(rows))
    made.settle()
    assert made.states[-1].ended == made.states[-1].begun


ACTIONS = st.one_of(
    st.tuples(st.just("report"), st.integers(0, 9)),
    st.tuples(st.just("die"), st.integers(0, 9), st.sampled_from([1, -9, -11, 0])),
    st.tuples(st.just("obey"), st.integers(0, 9)),
    st.tuples(st.just("time"), st.sampled_from([0.01, 0.1, 3.0, 30.0, 400.0])),
    st.tuples(st.sampled_from(["reload", "load", "refuse", "allow", "reopen"])),
)


def act(made, name, which=0, code=1):
    alive = made.alive
    chosen = alive[int(which) % len(alive)] if alive else None
    if name == "report" and chosen:
        chosen.report()
    elif name == "die" and chosen and not (code == 0 and chosen.role == "alone"):
        chosen.code = code
    elif name == "obey" and chosen and {signal.SIGUSR1, signal.SIGTERM} & set(chosen.signals):
        chosen.code = 0
    elif name == "time":
        made.now_s += which
    elif name == "load":
        made.load()
    elif name == "reload":
        made.reloader.request(made.now_s)
    elif name in {"refuse", "allow"}:
        made.refusing = name == "refuse"
    elif name == "reopen":
        made.fleet.reopen()


def check(made, workers):
    begun = made.alive
    owners = [each for each in begun if each.role not in {"front", "broker"}]
    assert len(owners) <= 1, "two would own the database"
    rows = [each.options.place.row for each in begun if each.options.place and each.role != "broker"]
    assert len(set(rows)) == len(rows)
    assert all(0 <= row < rows_of(workers) for row in rows)
    assert len(made.serving("broker")) <= 2
    assert all((each.options.place.row == 0) == (each.role == "primary") for each in begun if each.options.place)
    assert len(made.serving("front")) <= workers + 1
    assert {id(each.process) for each in made.fleet.members} >= {id(each) for each in made.alive}


@given(st.integers(1, 3), st.lists(ACTIONS, max_size=60), st.booleans())
@settings(max_examples=200, deadline=None)
def test_whatever_dies_and_when_a_server_comes_again_or_ends_as_a_whole(workers, actions, stops):
    made = FakeFleet(workers, broker=True)
    for action in actions:
        act(made, *action)
        made.update()
        check(made, workers)
    made.refusing = False
    if stops:
        made.stop()
    made.settle()
    check(made, workers)
    if made.fleet.stopping:
        assert made.fleet.outcome is not None
        assert not made.alive
    else:
        assert all(slot.current.process.ready for slot in made.fleet.slots)
        assert len(made.alive) == len(made.fleet.slots)
        assert not made.states or made.states[-1].begun == made.states[-1].ended
    assert all(each.closed for each in made.processes if not each.alive)
