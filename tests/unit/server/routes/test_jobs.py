"""Jobs over the wire: accepted once, waited for, listed, cancelled; and usage."""

import asyncio
import json
import uuid

import pytest
from sqlalchemy import select
from wasmtime import wat2wasm

from fakes.applications import ALPHA, ANY, bearer
from fakes.services import ADD, GUEST, START, until
from fakes.wire import ask
from tensorwasm.database.schema import JOBS
from tensorwasm.errors import QuotaExceeded
from tensorwasm.tenancy.quotas import TenantPolicy

TENANT = bearer(ALPHA, 7)


@pytest.fixture
def serve(served):
    """Return a function that runs a test against a service with two functions."""

    def run(test):
        async def main():
            async with served() as (service, pipeline):
                add = await service.functions.deploy(7, "add", ADD)
                guest = await service.functions.deploy(7, "guest", GUEST)

                async def call(method, path, body=None, headers=None, **more):
                    sent = b"" if body is None else json.dumps(body).encode()
                    kind = {} if body is None else {"Content-Type": "application/json"}
                    found = await ask(
                        pipeline, method, path, body=sent, headers=TENANT | kind | (headers or {}), **more
                    )
                    return found.status, found.json()

                call.pipeline = pipeline
                await test(call, add.id, guest.id, service)

        asyncio.run(main())

    return run


async def start(call, function, headers=None, **body):
    status, answer = await call("POST", f"/functions/{function}/invoke-async", body, headers)
    assert status == 202, answer
    return answer["job_id"]


async def ended(call, job):
    status, answer = await call("GET", f"/jobs/{job}/wait", query="timeout_s=30")
    assert status == 200, answer
    return answer


def test_a_job_returns_what_a_call_returns(serve):
    async def test(call, add, guest, service):
        for function, body in ((add, {"export": "add", "args": [2, 3]}), (guest, {}), (guest, {"export": "say"})):
            job = await ended(call, await start(call, function, **body))
            assert job["status"] == "completed"
            assert job["result"] == (await call("POST", f"/functions/{function}/invoke", body))[1]
            assert job.keys() >= {"id", "function_id", "tenant_id", "created_unix_ms", "ended_unix_ms"}
            assert (job["function_id"], job["tenant_id"], job["attempts"], job["version"]) == (function, 7, 1, 1)
            assert (await call("GET", f"/jobs/{job['id']}"))[1] == job

    serve(test)


WRITES_AND_TRAPS = bytes(
    wat2wasm("""(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\\10\\00\\00\\00\\02\\00\\00\\00") (data (i32.const 16) "hi")
  (func (export "main") (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 8))) unreachable))""")
)


def test_a_failed_job_keeps_its_guests_output(serve):
    async def test(call, add, guest, service):
        failing = (await service.functions.deploy(7, "failing", WRITES_AND_TRAPS)).id
        job = await ended(call, await start(call, failing))
        assert (job["status"], job["result"]["stderr"]) == ("failed", {"text": "hi"})
        assert "stderr" not in job["error"]

    serve(test)


def test_the_result_of_a_failed_job_is_its_failure(serve):
    async def test(call, add, guest, service):
        job = await ended(call, await start(call, guest, export="trap"))
        assert job["status"] == "failed"
        assert job["result"].pop("backtrace")[0].keys() == {"function", "name", "offset"}
        assert job["result"] == job["error"] == {"kind": "wasmtime", "message": "the guest trapped: unreachable"}
        slow = await ended(call, await start(call, guest, export="spin", deadline_ms=30))
        assert (slow["status"], slow["result"]["kind"]) == ("failed", "invoke_timeout")

    serve(test)


def test_an_invalid_call_is_refused_before_there_is_a_job(serve):
    async def test(call, add, guest, service):
        refusals = {
            "missing_export": {"export": "absent"},
            "invalid_args": {"export": "add", "args": [1]},
            "too_many_args": {"export": "add", "args": [1] * 257},
            "body_too_large": {"export": "add", "args": [1, 2], "input": "x" * (1 << 20)},
            "invalid_json": {"export": "add", "args": [1, 2], "max_attempts": 0},
            "invalid_request": {"export": "add", "args": [1, 2], "delay_s": 5, "expires_s": 5},
        }
        for kind, body in refusals.items():
            status, answer = await call("POST", f"/functions/{add}/invoke-async", body)
            assert (answer["error"]["kind"], status >= 400) == (kind, True)
        assert (await call("GET", "/jobs"))[1] == {"jobs": [], "next": None}
        assert service.jobs.active == 0
        unknown = uuid.uuid4()
        assert (await call("POST", f"/functions/{unknown}/invoke-async", {}))[0] == 404

    serve(test)


def test_an_idempotency_key_returns_the_first_job_and_refuses_another_request(serve):
    async def test(call, add, guest, service):
        key = {"Idempotency-Key": "once"}
        body = {"export": "add", "args": [1, 2]}
        jobs = await asyncio.gather(*(start(call, add, key, **body) for _ in range(8)))
        assert len(set(jobs)) == 1
        assert len((await call("GET", "/jobs"))[1]["jobs"]) == 1
        path = f"/functions/{add}/invoke-async"
        status, answer = await call("POST", path, body | {"args": [1, 3]}, key)
        assert (status, answer["error"]["kind"]) == (422, "idempotency_mismatch")
        status, answer = await call("POST", path, body, {"Idempotency-Key": "x" * 256})
        assert (status, answer["error"]["kind"]) == (400, "invalid_request")

    serve(test)


def test_an_idempotency_key_returns_the_first_function(serve):
    async def test(call, add, guest, service):
        headers = {"Idempotency-Key": "deploy once", "Content-Type": "application/wasm"}

        async def deploy(name="twice"):
            arguments = {"headers": TENANT | headers, "body": ADD, "query": f"name={name}"}
            return await ask(call.pipeline, "POST", "/functions", **arguments)

        before = (await call("GET", "/functions"))[1]["functions"]
        found = await asyncio.gather(*(deploy() for _ in range(6)))
        assert {each.status for each in found} == {200}
        assert len({each.json()["id"] for each in found}) == 1
        after = (await call("GET", "/functions"))[1]["functions"]
        assert len(after) == len(before) + 1
        other = await deploy("another")
        assert (other.status, other.kind) == (422, "idempotency_mismatch")
        assert (await service.functions.tidy()) == (0, 0)

    serve(test)


def test_a_job_is_cancelled_once(serve):
    async def test(call, add, guest, service):
        waits = await start(call, add, export="add", args=[1, 2], delay_s=3600)
        status, answer = await call("DELETE", f"/jobs/{waits}")
        assert (status, answer["status"]) == (200, "cancelled")
        status, answer = await call("DELETE", f"/jobs/{waits}")
        assert (status, answer["error"]["kind"]) == (409, "conflict")
        runs = await start(call, guest, export="spin", deadline_ms=60_000)
        while (await service.jobs.get(7, runs)).status != "running":  # a tenant's requests are counted
            await service.jobs.get(7, waits)
        status, answer = await call("DELETE", f"/jobs/{runs}")
        assert (status, answer["cancelled"]) == (200, True)
        job = await ended(call, runs)
        assert job["status"] == "cancelled"
        assert "result" not in job
        await until(lambda: not service.jobs.active)  # an attempt that nobody waits for ends when it can

    serve(test)


def test_jobs_are_listed_newest_first_in_pages(serve):
    async def test(call, add, guest, service):
        made = [await start(call, add, export="add", args=[n, 1], delay_s=n % 2 * 3600) for n in range(7)]
        for job in made[::2]:
            await ended(call, job)
        seen, after = [], ""
        while after is not None:
            status, page = await call("GET", "/jobs", query=f"limit=2&after={after}")
            assert status == 200
            assert len(page["jobs"]) <= 2
            assert all("result" not in job for job in page["jobs"])
            seen += [job["id"] for job in page["jobs"]]
            after = page["next"]
        assert sorted(seen) == sorted(made)
        for status, wanted in (("completed", made[::2]), ("pending", made[1::2])):
            listed = (await call("GET", "/jobs", query=f"status={status}&function_id={add}"))[1]["jobs"]
            assert {job["id"] for job in listed} == set(wanted)
        assert (await call("GET", "/jobs", query="status=odd"))[0] == 400
        assert (await call("GET", "/jobs", query="after=odd"))[0] == 400

    serve(test)


def test_jobs_of_others_are_not_shown(serve):
    async def test(call, add, guest, service):
        job = await start(call, add, export="add", args=[1, 2], delay_s=3600)
        other = bearer(ANY, 8)
        for method, path in (("GET", ""), ("GET", "/wait"), ("DELETE", "")):
            missing = await call(method, f"/jobs/{uuid.uuid4()}{path}", headers=other)
            assert await call(method, f"/jobs/{job}{path}", headers=other) == missing
            assert (missing[0], missing[1]["error"]["kind"]) == (404, "not_found")
        assert (await call("GET", "/jobs", headers=other))[1]["jobs"] == []
        for unknown in (uuid.uuid4(), "odd", "0" * 36):
            assert (await call("GET", f"/jobs/{unknown}"))[0] == 404

    serve(test)


def test_waiting_ends_at_its_timeout(serve):
    async def test(call, add, guest, service):
        job = await start(call, add, export="add", args=[1, 2], delay_s=3600)
        status, answer = await call("GET", f"/jobs/{job}/wait", query="timeout_s=0.01")
        assert (status, answer["status"]) == (200, "pending")
        for text in ("-1", "nan", "inf", "x"):
            assert (await call("GET", f"/jobs/{job}/wait", query=f"timeout_s={text}"))[0] == 400

    serve(test)


def test_usage_counts_calls_of_functions(serve):
    async def test(call, add, guest, service):
        await ended(call, await start(call, add, export="add", args=[1, 2]))
        await call("POST", f"/functions/{guest}/invoke", {"export": "trap"})
        status, usage = await call("GET", "/usage")
        assert status == 200
        assert (usage["tenant_id"], usage["total"]["requests"], usage["total"]["errors"]) == (7, 2, 1)
        assert [hour["used"] for hour in usage["hours"]] == [usage["total"]]
        assert usage["quotas"]["instances"] == {"used": 0, "limit": usage["quotas"]["instances"]["limit"]}
        assert (await call("GET", "/usage", query="since_unix_ms=9&until_unix_ms=0"))[0] == 400
        assert (await call("GET", "/usage", headers=bearer(ANY, 8)))[1]["total"]["requests"] == 0

    serve(test)


def test_jobs_of_a_disabled_tenant_are_not_run(serve):
    async def test(call, add, guest, service):
        job = await start(call, add, export="add", args=[2, 3], delay_s=0.2)
        service.identities.policies[7] = TenantPolicy(disabled=True)
        found = await service.jobs.wait(7, job, 30)
        assert (found.status, found.error.kind) == ("failed", "tenant_scope_denied")
        assert service.invocations.statistics().begun == 0

    serve(test)


def test_a_tenants_cap_of_stored_bytes_holds(serve):
    async def test(call, add, guest, service):
        used = (await call("GET", "/usage"))[1]["quotas"]["artifact_bytes"]["used"]
        assert used == len(ADD) + len(GUEST)
        service.identities.policies[7] = TenantPolicy(quotas={"artifact_bytes": used + 10})
        with pytest.raises(QuotaExceeded):
            await service.functions.deploy(7, "more", START)
        await service.functions.deploy(8, "more", START)
        assert (await call("GET", "/usage"))[1]["quotas"]["artifact_bytes"] == {"used": used, "limit": used + 10}

    serve(test)


def test_the_input_of_a_job_is_deleted_at_its_end(serve):
    """A day of ended jobs is kept; their calls, of up to a MiB each, are not."""

    async def test(call, add, guest, service):
        done = await start(call, add, export="add", args=[2, 3])
        await ended(call, done)
        gone = await start(call, add, export="add", args=[2, 3], delay_s=60)
        kept = select(JOBS.c.id, JOBS.c.request)
        before = dict(await service.database.read(lambda connection: connection.execute(kept).all()))
        assert before[gone]
        assert (await call("DELETE", f"/jobs/{gone}"))[0] == 200
        after = dict(await service.database.read(lambda connection: connection.execute(kept).all()))
        assert (before[done], after[gone]) == (b"", b"")

    serve(test)
