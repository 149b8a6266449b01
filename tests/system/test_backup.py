"""The data folder alone is all that a machine needs to go on; what a copy lacks is said before it is needed."""

import json
import shutil
import subprocess
import sys

from fakes.services import COUNTER
from neighbours import deploy
from servers import running_server

MINE = {"X-TensorWasm-Tenant": "7"}


def doctor(folder, home):
    """Return what ``doctor --data`` says of a folder: whether it is whole, and which rows fail."""
    environment = {"TENSOR_WASM_STATE_DIR": str(home), "PATH": "/usr/bin"}
    command = [sys.executable, "-m", "tensorwasm.cli", "doctor", "--data", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == (not found["ok"]), done.stderr
    return found["ok"], {row["check"] for row in found["rows"] if row["status"] == "FAIL"}


def test_a_copy_of_the_data_folder_goes_on_and_one_without_its_key_says_so(tmp_path):
    data = tmp_path / "data"
    with running_server(data) as server, server.client(headers=MINE) as client:
        token = server.token
        session = client.post("/sessions", json={"function": deploy(client, COUNTER, "counter")}).json()["id"]
        assert client.post(f"/sessions/{session}/invoke", json={"durable": True}).json()["result"] == [1]
        kept = client.post(f"/sessions/{session}/snapshot").json()["id"]
        assert server.stop() == 0
    whole, lacking = tmp_path / "whole", tmp_path / "lacking"
    for copy in (whole, lacking):
        shutil.copytree(data, copy)
    shutil.rmtree(data)
    shutil.rmtree(lacking / "keys")
    home = tmp_path / "home"
    assert doctor(whole, home) == (True, set())
    assert doctor(lacking, home) == (False, {"keys", "keys of saved states"})
    assert not (lacking / "keys").exists(), "looking made something"
    with running_server(whole, token=token) as server, server.client(headers=MINE) as client:
        assert client.post(f"/sessions/{session}/invoke", json={}).json()["result"] == [2]
        assert client.post(f"/snapshots/{kept}/restore").is_success
    with running_server(lacking, token=token) as server, server.client(headers=MINE) as client:
        for path in (f"/sessions/{session}/invoke", f"/snapshots/{kept}/restore", f"/sessions/{session}/snapshot"):
            refused = client.post(path)
            assert (refused.status_code, refused.json()["error"]["kind"]) == (503, "snapshot_key_missing"), path
            assert "key" in refused.json()["error"]["message"]
    shutil.rmtree(whole / "artifacts")
    assert doctor(whole, home) == (False, {"artifacts"})
    (whole / "service.db").unlink()
    assert doctor(whole, home) == (False, {"database"})
