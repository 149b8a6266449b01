"""Functions with a device, in worker processes behind the service: results, streams, clients that leave, and deaths."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from fakes.services import GUEST, opened, until
from tensorwasm import Runtime
from tensorwasm.database.functions import FunctionOptions
from tensorwasm.errors import DeviceFault, GuestTrap, InvokeTimeout, QuotaExceeded
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.invocations.workers import Workers
from tensorwasm.tenancy.quotas import TenantPolicy
from tensorwasm.values import Deadline

VECTOR_ADD = (Path(__file__).parents[2] / "examples" / "vector_add" / "vector_add.wasm").read_bytes()
CUDA = FunctionOptions(grants=("cuda",))
GREEDY = bytes(
    wat2wasm("""(module
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_alloc" (func $alloc (param i32 i32) (result i64)))
  (memory (export "memory") 1)
  (func (export "main") (result i64) (call $alloc (i32.const 65536) (i32.const 0))))""")
)
SOON_S = 60.0


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator") as runtime:
        yield runtime


def tell(tmp_path, runtime, story):
    async def run():
        workers = Workers(lambda: WorkerExecutor("emulator"))
        async with opened(tmp_path, runtime=runtime, workers=workers) as service:
            await story(service)
            assert service.invocations.statistics().running == 0

    asyncio.run(run())


def test_a_function_launches_its_kernel_on_the_emulator(tmp_path, runtime):
    async def story(service):
        made = await service.functions.deploy(1, "vector_add", VECTOR_ADD, CUDA)
        outcome = await service.invocations.invoke(service.admission.admit_tenant(1), made.id, InvocationRequest())
        assert (outcome.exit_code, outcome.gpu.kernels_launched) == (0, 1)
        assert b"verified" in outcome.stdout
        assert service.quotas.usage(1)["launches_per_hour"] == 1
        async with service.invocations.stream(
            service.admission.admit_tenant(1), made.id, InvocationRequest()
        ) as stream:
            assert [chunk async for chunk in stream] == []
            assert b"verified" in stream.outcome.stdout

    tell(tmp_path, runtime, story)


def test_streams_cross_the_border_whole_in_order_and_as_fast_as_they_are_taken(tmp_path, runtime):
    async def story(service):
        made = await service.functions.deploy(1, "guest", GUEST, CUDA)
        async with service.invocations.stream(
            service.admission.admit_tenant(1), made.id, InvocationRequest("count", (500,))
        ) as stream:
            taken = [int.from_bytes(chunk, "little") async for chunk in stream]
            assert taken == list(range(500))
            assert stream.outcome.values == (0,)
        async with service.invocations.stream(
            service.admission.admit_tenant(1), made.id, InvocationRequest("trap")
        ) as stream:
            assert len([chunk async for chunk in stream]) == 1
            with pytest.raises(GuestTrap):
                _ = stream.outcome
        ask = InvocationRequest("count", (1 << 30,), deadline=Deadline.after(0.5))
        async with service.invocations.stream(service.admission.admit_tenant(1), made.id, ask) as stream:
            assert (
                await service.invocations.invoke(service.admission.admit_tenant(1), made.id, InvocationRequest("say"))
            ).stdout == b"hi"
            await asyncio.to_thread(stream._pending.exception, SOON_S)
            assert len([chunk async for chunk in stream]) <= 100
            with pytest.raises(InvokeTimeout):
                _ = stream.outcome
        async with service.invocations.stream(
            service.admission.admit_tenant(1), made.id, InvocationRequest("count", (1 << 30,))
        ) as stream:
            await anext(stream)
        assert stream._pending.done()

    tell(tmp_path, runtime, story)


def test_a_client_that_leaves_and_a_deadline_end_the_guest_there(tmp_path, runtime):
    async def story(service):
        made = await service.functions.deploy(1, "guest", GUEST, CUDA)
        with pytest.raises(InvokeTimeout):
            await service.invocations.invoke(
                service.admission.admit_tenant(1), made.id, InvocationRequest("spin", deadline=Deadline.after(0.1))
            )
        task = asyncio.create_task(
            service.invocations.invoke(service.admission.admit_tenant(1), made.id, InvocationRequest("spin"))
        )
        await until(lambda: any(worker.running for worker in service.invocations.workers.statistics()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not any(worker.running for worker in service.invocations.workers.statistics()))

    tell(tmp_path, runtime, story)


def test_a_worker_that_is_killed_takes_its_own_call_with_it_and_is_replaced(tmp_path, runtime):
    async def story(service):
        made = await service.functions.deploy(1, "guest", GUEST, CUDA)
        assert (
            await service.invocations.invoke(service.admission.admit_tenant(1), made.id, InvocationRequest("say"))
        ).stdout == b"hi"
        (worker,) = service.invocations.workers.statistics()
        async with service.invocations.stream(
            service.admission.admit_tenant(1), made.id, InvocationRequest("count", (1 << 30,))
        ) as stream:
            call = asyncio.create_task(
                service.invocations.invoke(service.admission.admit_tenant(1), made.id, InvocationRequest("spin"))
            )
            await anext(stream)
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(DeviceFault) as fault:
                await call
            assert fault.value.retryable
            async for _ in stream:
                pass
            with pytest.raises(DeviceFault):
                _ = stream.outcome
        assert (
            await service.invocations.invoke(service.admission.admit_tenant(1), made.id, InvocationRequest("say"))
        ).stdout == b"hi"
        assert service.invocations.statistics().restarts == 1

    tell(tmp_path, runtime, story)


def test_a_tenant_s_quotas_hold_on_the_device(tmp_path, runtime):
    async def story(service):
        made = await service.functions.deploy(1, "greedy", GREEDY, CUDA)
        service.identities.policies[1] = TenantPolicy(quotas={"gpu_bytes": 1 << 20})
        assert (
            await service.invocations.invoke(service.admission.admit_tenant(1), made.id, InvocationRequest())
        ).values[0] > 0
        service.identities.policies[1] = TenantPolicy(quotas={"gpu_bytes": 1024})
        outcome = await service.invocations.invoke(service.admission.admit_tenant(1), made.id, InvocationRequest())
        assert outcome.values[0] < 0
        assert outcome.gpu.quota_refusals == 1
        service.identities.policies[1] = TenantPolicy(quotas={"launches_per_hour": 0})
        with pytest.raises(QuotaExceeded, match="launches_per_hour"):
            await service.invocations.invoke(service.admission.admit_tenant(1), made.id, InvocationRequest())

    tell(tmp_path, runtime, story)
