"""A real S3 server in a process of its own: moto's, behind a lock so that its conditional puts are atomic.

Moto checks the condition of a put and writes in two steps, each of which another thread could come between.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import contextmanager

BUCKET = "artifacts"


def serve():
    """Serve on some port of this machine, which is the first line printed, until standard input ends."""
    from moto.server import DomainDispatcherApplication, create_backend_app  # noqa: PLC0415 - the child's alone
    from werkzeug.serving import make_server  # noqa: PLC0415 - the same

    moto, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def one_at_a_time(environ, start_response):
        with lock:
            return list(moto(environ, start_response))

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


@contextmanager
def running():
    """Give the environment under which S3 is this server, with an empty bucket."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "MOTO_IAM_LOAD_MANAGED_POLICIES": "false"},
    )
    with process:
        try:
            endpoint = f"http://127.0.0.1:{int(process.stdout.readline())}"
            yield {
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_REGION": "us-east-1",
            }
        finally:
            process.stdin.close()


if __name__ == "__main__":
    serve()
