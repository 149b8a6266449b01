"""Opening a database: file permissions, URLs, and that no secret is shown."""

import logging
import os
import subprocess
import sys

import pytest
from sqlalchemy import text

from tensorwasm.database.engine import dialects
from tensorwasm.database.engine.opening import open_database, sqlite_url
from tensorwasm.database.schema import METADATA
from tensorwasm.errors import DatabaseUnavailable, InvalidArgs, UnsafeFile

OPEN = "import sys; from tensorwasm.database.engine.opening import open_database; open_database(sys.argv[1]).close()"


def mode(path):
    return path.stat().st_mode & 0o777


def ask(database, statement):
    with database.reading() as connection:
        return connection.execute(text(statement)).scalar_one()


def test_a_database_has_all_tables(database):
    with database.reading() as connection:
        names = {name for table in METADATA.sorted_tables for name in [table.name]}
        found = {name for name in names if connection.dialect.has_table(connection, name)}
    assert found == names


def test_a_file_and_its_folder_are_made_for_this_user_alone(tmp_path):
    path = tmp_path / "above" / "data" / "service.db"
    database = open_database(sqlite_url(path))
    assert [mode(path), mode(path.parent)] == [0o600, 0o700]
    assert {mode(file) for file in path.parent.iterdir()} == {0o600}
    database.close()


def test_sqlite_is_durable_and_keeps_references(sqlite_address):
    database = open_database(sqlite_address)
    found = [
        ask(database, f"PRAGMA {name}") for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    ]
    database.close()
    assert found == ["wal", 2, 1, 2000]


@pytest.mark.parametrize("who", [0o020, 0o002])
@pytest.mark.parametrize("part", ["folder", "file"])
def test_files_that_others_can_write_are_refused(tmp_path, part, who):
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    file = folder / "service.db"
    file.touch(mode=0o600)
    (folder if part == "folder" else file).chmod(0o700 | who)
    with pytest.raises(UnsafeFile, match="others can write") as caught:
        open_database(sqlite_url(file))
    assert str(tmp_path) not in str(caught.value)


def test_a_link_is_refused(tmp_path):
    target = tmp_path / "elsewhere"
    target.touch(mode=0o600)
    link = tmp_path / "service.db"
    link.symlink_to(target)
    with pytest.raises(UnsafeFile, match="link"):
        open_database(sqlite_url(link))


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give a file away")
def test_another_users_file_is_refused(tmp_path):
    file = tmp_path / "service.db"
    file.touch(mode=0o600)
    os.chown(file, 65534, -1)
    with pytest.raises(UnsafeFile, match="65534"):
        open_database(sqlite_url(file))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///a.db?mode=ro",
        "sqlite+pysqlcipher://:hunter2@/a.db",
        "mysql://root:hunter2@host/db",
        "postgresql://u:hunter2@h/db?password=hunter2",
        "postgresql://u:hunter2@h:port/x",
    ],
)
def test_a_refused_url_is_not_in_the_message(url):
    with pytest.raises(InvalidArgs) as caught:
        open_database(url)
    assert "hunter2" not in str(caught.value)


def test_a_password_is_never_shown(postgres_server, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(DatabaseUnavailable, match=r"credentials|does not answer") as caught:
        open_database(postgres_server.url(password="hunter2"))
    database = open_database(postgres_server.empty())
    shown = repr(database) + str(database) + str(caught.value) + repr(caught.value.__cause__) + caplog.text
    database.close()
    assert "hunter2" not in shown


def test_an_unreachable_server_is_reported_at_once(tmp_path):
    with pytest.raises(DatabaseUnavailable, match="does not answer"):
        open_database(f"postgresql://user:hunter2@/name?host={tmp_path}")


@pytest.mark.parametrize(
    "damage", [b"no database at all, but long enough to be taken for the header of one ........", None]
)
def test_a_damaged_file_is_distinguished_from_a_new_one(tmp_path, damage):
    path = tmp_path / "service.db"
    open_database(sqlite_url(path)).close()
    whole = path.read_bytes()
    path.write_bytes(damage * 100 if damage else whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(DatabaseUnavailable, match="damaged"):
        ask(open_database(sqlite_url(path)), "SELECT count(*) FROM functions")


def test_a_locked_file_is_reported_after_the_timeout(tmp_path, monkeypatch):
    monkeypatch.setattr(dialects, "BUSY_S", 0.05)
    holder = open_database(sqlite_url(tmp_path / "service.db"))
    with holder.writing(), pytest.raises(DatabaseUnavailable, match="locked"):
        open_database(sqlite_url(tmp_path / "service.db"))
    holder.close()


def test_several_processes_open_a_new_database_at_once(address):
    children = [subprocess.Popen([sys.executable, "-c", OPEN, address], stderr=subprocess.PIPE) for _ in range(3)]
    errors = [child.communicate()[1] for child in children]
    assert [child.returncode for child in children] == [0] * 3, errors
