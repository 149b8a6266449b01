"""Which server has a session: by its lease, and by owner and epoch of its writes."""

from dataclasses import replace

import pytest

from tensorwasm.database.engine.opening import claim_data_folder, open_database, own_database, sqlite_url
from tensorwasm.database.sessions import (
    ServerRecord,
    SessionOptions,
    SessionRecord,
    find_session,
    insert_session,
    join_servers,
    release_session,
    remove_dead_servers,
    remove_server,
    renew_server,
    take_session,
    write_session,
)
from tensorwasm.errors import DatabaseUnavailable, InvalidArgs, SessionElsewhere

FIRST = ServerRecord("1" * 36, "first", "k" * 16, "a" * 32)
SECOND = ServerRecord("2" * 36, "second", "k" * 16, "a" * 32)
LONG_MS = 600_000
OVER_MS = -1
RECORD = SessionRecord(
    id="5" * 36,
    tenant=7,
    function_id="f" * 36,
    version=1,
    status="saved",
    options=SessionOptions(),
    save="s" * 36,
    calls=4,
    saved_calls=4,
    rewinds=0,
    created_unix_ms=0,
    used_unix_ms=0,
)


def begin(connection, first_ms=LONG_MS, second_ms=LONG_MS):
    join_servers(connection, FIRST, first_ms)
    join_servers(connection, SECOND, second_ms)
    insert_session(connection, RECORD)


def test_a_session_belongs_to_one_live_server(database):
    with database.writing() as connection:
        begin(connection)
        mine = take_session(connection, RECORD.id, FIRST.id)
        assert (mine.owner, mine.epoch) == (FIRST.id, 1)
        with pytest.raises(SessionElsewhere) as refused:
            take_session(connection, RECORD.id, SECOND.id)
        assert refused.value.server == "first"
        assert take_session(connection, "none", FIRST.id) is None
        release_session(connection, mine)
        theirs = take_session(connection, RECORD.id, SECOND.id)
        assert (theirs.owner, theirs.epoch) == (SECOND.id, 2)
        release_session(connection, mine)  # too late to matter
        assert find_session(connection, RECORD.id).owner == SECOND.id


@pytest.mark.parametrize("status", ["live", "volatile", "saved"])
def test_a_dead_servers_sessions_are_rewound_and_its_late_writes_dropped(database, status):
    with database.writing() as connection:
        begin(connection, first_ms=OVER_MS)
        mine = replace(take_session(connection, RECORD.id, FIRST.id), status=status, calls=9)
        assert write_session(connection, mine)
        theirs = take_session(connection, RECORD.id, SECOND.id)
        assert theirs.status == ("lost" if status == "volatile" else "saved")
        assert theirs.rewinds == (status == "live")
        assert not write_session(connection, replace(mine, save="x" * 36))
        assert write_session(connection, replace(theirs, calls=5))
        assert not renew_server(connection, FIRST.id, LONG_MS), "it has lost its lease"
        assert renew_server(connection, SECOND.id, LONG_MS)


def test_a_record_is_obsolete_once_its_server_took_the_session_again(database):
    with database.writing() as connection:
        begin(connection)
        before = take_session(connection, RECORD.id, FIRST.id)
        take_session(connection, RECORD.id, FIRST.id)
        assert not write_session(connection, before)


def test_dead_servers_are_found_and_an_ended_one_is_removed_at_once(database):
    with database.writing() as connection:
        begin(connection, second_ms=OVER_MS)
        take_session(connection, RECORD.id, FIRST.id)
        assert remove_dead_servers(connection) == 1
        with pytest.raises(SessionElsewhere):
            take_session(connection, RECORD.id, SECOND.id)
        remove_server(connection, FIRST.id)
        assert take_session(connection, RECORD.id, SECOND.id).owner == SECOND.id


@pytest.mark.parametrize(("name", "setting"), [("snapshot_key", "SNAPSHOT_HMAC_KEY"), ("artifacts", "ARTIFACTS")])
def test_a_server_that_cannot_read_live_servers_snapshots_is_refused(database, name, setting):
    other = replace(SECOND, **{name: "x"})
    with database.writing() as connection:
        join_servers(connection, FIRST, LONG_MS)
        with pytest.raises(InvalidArgs, match=f"first.*{setting}"):
            join_servers(connection, other, LONG_MS)
        remove_server(connection, FIRST.id)
        join_servers(connection, other, LONG_MS)


def test_the_databases_clock_advances_in_a_transaction(database):
    with database.writing() as connection:
        join_servers(connection, FIRST, 0)
        assert remove_dead_servers(connection) == 1
        join_servers(connection, SECOND, LONG_MS)
        assert remove_dead_servers(connection) == 0


def test_a_second_server_of_a_file_is_refused(tmp_path):
    url = sqlite_url(tmp_path / "service.db")
    with own_database(url) as alone:
        assert alone
        open_database(url).close()
        with pytest.raises(DatabaseUnavailable, match="another server"), own_database(url):
            pass
    with own_database(url) as alone:
        assert alone


def test_a_data_folder_names_the_process_that_is_replaced(tmp_path):
    with claim_data_folder(tmp_path, FIRST.id) as before:
        assert before == ""
        with claim_data_folder(tmp_path, "9" * 36) as other:
            assert other == "", "the one that has the folder lives"
    with claim_data_folder(tmp_path, SECOND.id) as before:
        assert before == FIRST.id
