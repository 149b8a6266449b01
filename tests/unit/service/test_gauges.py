"""The metrics of a service say how it is."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fakes.services import ADD, GUEST, opened
from tensorwasm.database.functions import FunctionOptions
from tensorwasm.errors import DatabaseUnavailable, QuotaExceeded
from tensorwasm.service.gauges import Gauges
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.telemetry.metrics import Metrics


def _samples(metrics):
    return {
        (sample.name.removeprefix("tensor_wasm_"), *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_metrics_show_the_service_s_work(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            made = [await service.functions.deploy(1, name, ADD, FunctionOptions()) for name in "ab"]
            for _ in range(3):
                await service.invocations.invoke(
                    service.admission.admit_tenant(1), made[0].id, InvocationRequest("add", (2, 3))
                )
            with pytest.raises(QuotaExceeded):
                service.quotas.hold(1, {"streams": 0}, streams=1)
            service.quotas.charge(1, gpu_us=5, launches=4)
            with service.quotas.hold(9, {}, instances=2, memory_bytes=1 << 20, streams=1):
                found = _samples(service.metrics)
            assert found["instance_spawns_total",] == found["instance_terminations_total",] == 3
            assert found["function_loads_total",] >= 1
            assert found["active_instances",] == 2
            assert found["streams_active",] == 1
            assert found["cpu_memory_bytes_per_tenant", "T#9"] == 1 << 20
            assert found["quota_refusals_total", "streams"] == 1
            assert found["kernel_dispatches_total",] == 4
            assert found["database_commits_total",] >= 2
            assert found["queue_free_slots", "cpu"] > 0
            assert found["queue_waiting", "streams"] == found["workers_alive",] == found["audit_failing",] == 0
            assert ("pool_draws_total", "hit") in found

    asyncio.run(story())


def test_chunks_are_counted_as_they_are_taken_streamed_or_whole(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            made = await service.functions.deploy(1, "f", GUEST, FunctionOptions())
            async with service.invocations.stream(
                service.admission.admit_tenant(1), made.id, InvocationRequest("count", (5,))
            ) as stream:
                await anext(stream)
                await anext(stream)
                assert _samples(service.metrics)["streaming_chunks_emitted_total",] == 2
                assert len([chunk async for chunk in stream]) == 3
            await service.invocations.invoke(service.admission.admit_tenant(1), made.id, InvocationRequest("main"))
            assert _samples(service.metrics)["streaming_chunks_emitted_total",] == 7

    asyncio.run(story())


def test_functions_jobs_and_sessions_are_counted_on_refresh(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            gauges = Gauges(
                database=service.database,
                audit=service.audit,
                quotas=service.quotas,
                invocations=service.invocations,
                loader=None,
                warm=runtime.warm.statistics,
            )
            metrics = Metrics()
            gauges.watch(metrics)
            assert _samples(metrics)["functions_total",] == 0
            for name in "abc":
                await service.functions.deploy(1, name, ADD, FunctionOptions())
            await gauges.refresh()
            assert _samples(metrics)["functions_total",] == 3
            gauges.database = Silent()
            with pytest.raises(DatabaseUnavailable):
                await gauges.refresh()
            assert gauges.counts.functions == 3

    asyncio.run(story())


class Silent:
    """A database whose database does not answer."""

    async def read(self, _fn):
        raise DatabaseUnavailable("it does not answer")
