"""Kernels from the command line: signed, published, listed, fetched, checked."""

import json

import pytest

from strategies.kernels import FILL

TEXT = FILL if isinstance(FILL, str) else FILL.decode()


@pytest.fixture
def files(tmp_path):
    (tmp_path / "key").write_text("6b" * 32 + "\n")
    (tmp_path / "raw").write_bytes(b"k" * 32)
    (tmp_path / "ptx").write_text(TEXT)
    for name in ("key", "raw"):
        (tmp_path / name).chmod(0o600)
    return tmp_path


def publish(cli, files, key="key", **more):
    return cli(
        "kernel", "publish", more.get("name", "fill"), "1", "--ptx-file", files / more.get("ptx", "ptx"), "--sm", "90",
        "--key-file", files / key, "--publisher", "us",
    )  # fmt: skip


def test_a_kernel_is_signed_here_and_published_without_the_key(server, cli, files):
    server["POST /kernels"] = (201, {"name": "fill\x1b", "version": "1"})
    done = publish(cli, files)
    assert (done.code, done.out, done.err) == (0, "fill@1\n", "")
    (body,) = server.bodies
    assert body["ptx_text"] == TEXT
    assert "6b6b" not in json.dumps(body)
    (files / "manifest").write_text(json.dumps(body["manifest"]))
    check = ("kernel", "verify", "fill@1", "--manifest-file", files / "manifest")
    for key in ("key", "raw"):
        assert cli(*check, "--key-file", files / key, "--ptx-file", files / "ptx").out == "ok\n"
    (files / "ptx").write_text(TEXT + " ")
    for wrong in (
        ("kernel", "verify", "fill@2", "--manifest-file", files / "manifest", "--key-file", files / "key"),
        (*check, "--key-file", files / "key", "--ptx-file", files / "ptx"),
        ("kernel", "verify", "fill", "--manifest-file", files / "manifest", "--key-file", files / "key"),
    ):
        assert cli(*wrong).code == 2
    (files / "raw").write_bytes(b"l" * 32)
    assert cli(*check, "--key-file", files / "raw").code == 2


@pytest.mark.parametrize("content", [b"", b"k" * 31, b"k" * 33, b"6b" * 31 + b"zz", b"6b" * 40])
def test_an_invalid_key_is_refused_and_not_shown(server, cli, files, content):
    (files / "key").write_bytes(content)
    done = publish(cli, files)
    assert done.code == 2
    assert "invalid_key" in done.err
    assert not content or content.decode() not in done.err
    assert server.bodies == []


def test_a_key_file_open_to_others_is_warned_of_or_refused(server, cli, files, monkeypatch):
    server["POST /kernels"] = (201, {"name": "fill", "version": "1"})
    (files / "key").chmod(0o640)
    done = publish(cli, files)
    assert done.code == 0
    assert "chmod 600" in done.err
    monkeypatch.setenv("TENSOR_WASM_REQUIRE_KEY_PERMS", "1")
    assert publish(cli, files).code == 2


def test_kernels_are_listed_page_by_page(server, cli):
    row = {"name": "fill", "version": "1", "sm_version": 90, "publisher": "", "published_unix_ms": 0, "digest": "d"}
    server["GET /kernels"] = [{"manifests": [row] * 1000}, {"manifests": [row]}]
    assert len(cli("kernel", "list").out.splitlines()) == 1002
    assert server.asked == ["GET /kernels?offset=0&limit=1000", "GET /kernels?offset=1000&limit=1000"]
    server["GET /kernels"] = {"manifests": []}
    assert cli("kernel", "list").out == "(no kernels registered)\n"
    assert cli("kernel", "list", "--output", "json").out == "[]\n"


def test_a_kernel_and_its_manifest_are_fetched(server, cli, tmp_path):
    server["GET /kernels/a b/1"] = {"manifest": {"name": "a b"}, "ptx_text": "one\x1b[2J\ntwo\n"}
    done = cli("kernel", "fetch", "a b@1", "--manifest-file", tmp_path / "manifest")
    assert (done.code, done.out) == (0, "one[2J\ntwo\n")
    assert server.asked == ["GET /kernels/a%20b/1"]
    assert json.loads((tmp_path / "manifest").read_text()) == {"name": "a b"}


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"name": 1}', '{"name":"a","version":"1","sm_version":1,"digest":"x"}']
)
def test_an_invalid_manifest_is_refused(cli, files, content):
    (files / "manifest").write_text(content)
    done = cli("kernel", "verify", "a@1", "--manifest-file", files / "manifest", "--key-file", files / "key")
    assert done.code == 2
    assert cli("kernel", "verify", "a@1", "--manifest-file", files / "none", "--key-file", files / "key").code == 2


def test_invalid_ptx_or_names_are_not_sent(server, cli, files):
    (files / "bad").write_bytes(b"\xff")
    assert publish(cli, files, ptx="bad").code == 2
    assert publish(cli, files, name="a\nb").code == 2
    assert publish(cli, files, ptx="none").code == 2
    assert server.bodies == []


def test_check_reports_for_each_kernel_whether_a_device_accepts_it(cli, tmp_path):
    text = tmp_path / "some.ptx"
    text.write_text(TEXT + ".visible .entry odd()\n{\n    wgmma.fence.sync.aligned;\n    ret;\n}\n")
    done = cli("kernel", "check", text, "--device", "emulator", "--output", "json")
    assert done.code == 1
    fine, odd = json.loads(done.out)
    assert (fine["kernel"], fine["state"]) == ("fill", "ok")
    assert (odd["kernel"], odd["state"]) == ("odd", "unsupported_ptx")
    assert odd["line"] == TEXT.count("\n") + 3
    assert "warpgroup" in odd["reason"]
    text.write_text(TEXT)
    assert cli("kernel", "check", text, "--device", "emulator").code == 0
