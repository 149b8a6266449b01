"""Manipulations of a log are found; traces of a process that died are not taken for one."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strategies.audit import RECORDS, tamperings
from tensorwasm.tenancy.audit import AuditLog, verify
from tensorwasm.tenancy.audit.chain import GENESIS, MAX_LINE_BYTES, Chain, ChainHead, read_link, unlink
from tensorwasm.tenancy.audit.records import AuditRecord, RecordFrame, actor_of, encode, outcome_of
from tensorwasm.tenancy.audit.sinks import open_file, write_head
from tensorwasm.tenancy.principal import Principal

OPENED = b'{"notice":"opened"}'


def _lines(count=8):
    chain = Chain(0, GENESIS)
    lines = [chain.link(OPENED), *(chain.link(b'{"action":"a%d"}' % n) for n in range(count - 1))]
    return lines, ChainHead(chain.seq, chain.hash)


def _write(folder, lines, head):
    path = folder / "audit.log"
    path.write_bytes(b"".join(lines))
    write_head(path, head)
    return path


@given(RECORDS)
def test_every_record_is_one_line_that_holds(record):
    chain = Chain(0, GENESIS)
    line = chain.link(encode(record))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert len(line) < MAX_LINE_BYTES
    link = read_link(line[:-1])
    assert (link.seq, link.prev, link.hash) == (1, GENESIS, chain.hash)
    said = json.loads(line)
    assert said["ts_unix_ms"] == record.ts_unix_ms
    assert said["outcome"]["status_code"] in range(100, 600)


@given(RECORDS)
def test_what_a_line_was_made_of_can_be_taken_back(record):
    body = encode(record)
    assert unlink(Chain(0, GENESIS).link(body)[:-1]) == body


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_removed_changed_moved_and_inserted_lines_are_found(tmp_path, data):
    lines, head = _lines()
    assert verify(_write(tmp_path, lines, head)).ok
    assert not verify(_write(tmp_path, data.draw(tamperings(lines)), head)).ok


@given(st.binary(max_size=300))
def test_other_texts_are_not_lines(data):
    assert read_link(data) is None


def test_a_forged_log_is_found_by_its_head(tmp_path):
    lines, head = _lines()
    chain = Chain(0, GENESIS)
    forged = [chain.link(OPENED), *(chain.link(b'{"action":"b"}') for _ in lines)]
    assert [finding.line for finding in verify(_write(tmp_path, forged, head)).findings] == [len(lines)]


def test_findings_name_the_line(tmp_path):
    lines, head = _lines()
    lines[3] = lines[3].replace(b"a2", b"zz")
    del lines[5]
    found = verify(_write(tmp_path, lines, head))
    assert [finding.line for finding in found.findings] == [4, 6]
    assert found.lines == 6
    assert (found.first_seq, found.last) == (1, head)


def test_a_missing_head_is_reported_since_a_cut_end_would_not_be_found(tmp_path):
    lines, _ = _lines()
    path = tmp_path / "audit.log"
    path.write_bytes(b"".join(lines))
    assert not verify(path).ok
    assert verify(path, head=False).ok


def test_consecutive_files_are_one_log(tmp_path):
    lines, _ = _lines()
    chain = Chain(8, json.loads(lines[-1])["hash"])
    more = [chain.link(OPENED), chain.link(b'{"action":"c"}')]
    old = tmp_path / "audit.log.1"
    old.write_bytes(b"".join(lines))
    new = _write(tmp_path, more, ChainHead(chain.seq, chain.hash))
    assert verify(old, new).lines == 10
    assert verify(old, new).ok
    assert verify(new).ok
    assert verify(new).first_seq == 9
    assert not verify(new, old).ok
    old.write_bytes(b"".join(lines[:-1]))
    assert not verify(old, new).ok


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_wherever_a_process_died_the_next_one_continues(tmp_path, data):
    """What was flushed is there; of what was written since, the end may be missing."""
    lines, _ = _lines()
    flushed = data.draw(st.integers(0, len(lines)))
    whole, kept = b"".join(lines), b"".join(lines[:flushed])
    path = tmp_path / "audit.log"
    path.write_bytes(whole[: data.draw(st.integers(len(kept), len(whole)))])
    write_head(path, ChainHead() if not flushed else ChainHead(flushed, json.loads(lines[flushed - 1])["hash"]))
    torn_bytes = verify(path).torn_bytes
    AuditLog(path).close()
    found = verify(path)
    assert found.ok
    notices = [json.loads(line).get("notice") for line in path.read_bytes().splitlines()]
    assert notices.count("torn") == bool(torn_bytes)
    assert notices.count("resumed") + notices.count("opened") >= 1 + bool(flushed)
    assert path.read_bytes().startswith(kept)


def test_flushed_lines_missing_at_the_start_stay_visible(tmp_path):
    lines, head = _lines()
    path = _write(tmp_path, lines[:5], head)
    AuditLog(path).close()
    AuditLog(path).close()
    found = verify(path)
    assert [finding.detail for finding in found.findings] == ["line 9 of the log follows line 5"]
    assert [json.loads(line)["count"] for line in path.read_bytes().splitlines() if b'"cut"' in line] == [3]


@pytest.mark.parametrize("content", [b"hello", b"hello\n", b"x" * 100_000, b'{"seq":1}\n'])
def test_a_file_with_other_content_is_refused_and_unchanged(tmp_path, content):
    path = tmp_path / "precious.txt"
    path.write_bytes(content)
    with pytest.raises(Exception, match="other content"):
        AuditLog(path)
    assert path.read_bytes() == content


def test_an_invalid_line_at_the_end_stays_and_is_found(tmp_path):
    lines, head = _lines()
    lines[-1] = lines[-1].replace(b"a6", b"zz")
    path = _write(tmp_path, lines, head)
    AuditLog(path).close()
    assert b"".join(lines) == path.read_bytes()[: len(b"".join(lines))]
    assert not verify(path).ok


@given(
    st.integers(0, 2**62), st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:=@+~-]{0,127}", fullmatch=True), st.text(),
    st.text(), st.floats(0, 1e12), st.text(), st.sampled_from([200, 201]), st.sampled_from([None, {1, 7}]),
)  # fmt: skip
def test_a_record_of_a_frame_is_the_record(ts_unix_ms, request_id, action, function, latency_ms, peer, status, tenants):
    principal = Principal("bearer", "env:1", None if tenants is None else frozenset(tenants))
    frame = RecordFrame(principal, 7, action, {"function_id": function}, status)
    resource = {"tenant_id": 7, "function_id": function}
    told = actor_of(principal), action, resource, outcome_of(status), latency_ms, peer
    encoded = frame.encode(ts_unix_ms, request_id, latency_ms, peer)
    assert json.loads(encoded) == json.loads(encode(AuditRecord(ts_unix_ms, request_id, *told)))
    assert list(json.loads(encoded)) == list(AuditRecord.__struct_fields__)


def test_a_record_with_what_cannot_be_encoded_is_written_without_it():
    record = AuditRecord(1, "r\ud800", None, "a", {"x": object()}, outcome_of(200), 0.5, "peer", "subject")
    said = json.loads(encode(record))
    assert said["resource"] == {"omitted": True}
    assert said["request_id"] == "r\\ud800"


def test_nul_bytes_after_the_last_line_are_a_torn_one(tmp_path):
    lines, head = _lines()
    opened = open_file(_write(tmp_path, [*lines, bytes(100)], head))
    assert (opened.torn_bytes, opened.cut_lines, opened.head) == (100, 0, head)
    opened.sink.close()
