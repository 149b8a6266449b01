"""A real PostgreSQL server of a test's own: in a temporary folder, behind a Unix socket, without privileges."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

PASSWORD = "hunter2 of the tests"
USER = "tester"
SETTINGS = ("listen_addresses=", "fsync=off", "shared_buffers=8MB", "max_connections=80", "deadlock_timeout=50ms")


def missing():
    """Return what is missing for it on this machine, None if nothing."""
    absent = [name for name in ("initdb", "postgres") if find(name) is None]
    return f"PostgreSQL's {' and '.join(absent)} not on PATH nor in /usr/lib/postgresql/*/bin" if absent else None


def find(name):
    """Return a program of PostgreSQL's, of the newest release if there are several."""
    rest = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    return shutil.which(name) or (str(rest[-1]) if rest else None)


class Server:
    """One server; `url` leads to its first database."""

    def __init__(self, folder):
        self.folder = folder
        self._account = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}
        if os.geteuid() != 0:
            self._account = {}
        else:
            os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
        self._process = self._drain = None
        self._created = 0
        secret = folder / "secret"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        command = [find("initdb"), "-D", str(folder / "data"), "-U", USER, "--auth=scram-sha-256", "--no-sync"]
        command += [f"--pwfile={secret}", "--encoding=UTF8", "--locale=C"]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **self._account)

    def url(self, *, password=PASSWORD, name="postgres"):
        quoted = password.replace(" ", "%20")
        return f"postgresql://{USER}:{quoted}@/{name}?host={self.folder}"

    def start(self):
        command = [find("postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder)]
        command += [f"-c{setting}" for setting in SETTINGS]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        self._process = subprocess.Popen(command, text=True, cwd="/", **pipes, **self._account)
        log = []
        for line in self._process.stderr:
            log.append(line)
            if "ready to accept connections" in line:
                break
        else:
            raise RuntimeError("".join(log))
        self._drain = threading.Thread(target=self._process.stderr.read, daemon=True)
        self._drain.start()

    def stop(self):
        """End it at once, with all its connections, as a machine that loses power would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._drain.join()
            self._process.stderr.close()
            self._process = None

    def empty(self):
        """Take everything out of the first database, which must not be open elsewhere, and return its URL."""
        self._execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        return self.url()

    def create(self):
        """Create another database, and return its URL."""
        self._created += 1
        name = f"created{self._created}"
        self._execute(f"CREATE DATABASE {name}")
        return self.url(name=name)

    def _execute(self, *commands):
        import psycopg  # noqa: PLC0415 - an extra

        address = {"host": str(self.folder), "user": USER, "password": PASSWORD, "dbname": "postgres"}
        with psycopg.connect(**address, autocommit=True) as connection:
            for command in commands:
                connection.execute(command)


@contextmanager
def running():
    """Give a server; it and all it kept are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    server = None
    try:
        server = Server(folder)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
