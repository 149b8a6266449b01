"""Stored records of a tenant are bounded, without cost for other tenants."""

from hypothesis import given
from hypothesis import strategies as st

from fakes.desks import InlineDesk
from tensorwasm.database.idempotency import KeyRecord, get_key, put_key, trim_keys
from tensorwasm.database.jobs import JobEnd, JobFilter, NewJob, cancel_job, insert_job, list_jobs, trim_jobs

SIZES = st.lists(st.integers(0, 50), max_size=12)


def add(connection, tenant, number, result):
    job_id = f"{tenant}-{number:04}"
    insert_job(connection, NewJob(job_id, tenant, "f", 1, b"", 1, 0, number, None, ""))
    if result is not None:
        cancel_job(connection, job_id, JobEnd("completed", number, 1000, bytes(result)))
    return job_id


@given(SIZES, SIZES, st.integers(0, 8), st.integers(0, 200), st.integers(1, 5))
def test_the_newest_ended_jobs_within_both_limits_stay(mine, others, most, most_bytes, limit):
    def story(connection):
        kept = {add(connection, 1, 0, None), add(connection, 2, 0, None)}
        for tenant, sizes in ((1, mine), (2, others)):
            ids = [add(connection, tenant, number, size) for number, size in enumerate(sizes, 1)]
            for count in range(len(ids) + 1):
                if count <= most and sum(sizes[len(sizes) - count :]) <= most_bytes:
                    newest = ids[len(ids) - count :]
            kept.update(newest)
        while removed := trim_jobs(connection, most, most_bytes, limit):
            assert removed <= limit
        found = {job.id for tenant in (1, 2) for job in list_jobs(connection, tenant, JobFilter())}
        assert found == kept

    InlineDesk().write_now(story)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 6), st.integers(1, 4))
def test_the_newest_keys_stay(mine, others, most, limit):
    def story(connection):
        counts = {1: mine, 2: others}
        for tenant, count in counts.items():
            for number in range(count):
                put_key(connection, KeyRecord(tenant, "invoke", f"k{number}", bytes(32), "s", number))
        while removed := trim_keys(connection, most, limit):
            assert removed <= limit
        for tenant, count in counts.items():
            there = [get_key(connection, tenant, "invoke", f"k{number}") is not None for number in range(count)]
            assert there == [number >= count - most for number in range(count)]

    InlineDesk().write_now(story)
