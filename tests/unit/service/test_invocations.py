"""Functions called: on the event loop, on the reactor, on threads; whole and as streams."""

import asyncio
import time

import pytest

from fakes.services import ADD, GUEST, START, SUM, opened, until
from tensorwasm.database.functions import FunctionOptions
from tensorwasm.errors import (
    CompileTimeout,
    Draining,
    GuestTrap,
    InternalError,
    InvalidArgs,
    InvokeTimeout,
    MissingExport,
    QuotaExceeded,
    TooManyArgs,
)
from tensorwasm.runtime.invoke.invocation import Invocation, PendingInvocation
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.invocations.streaming import DEPTH
from tensorwasm.tenancy.quotas import TenantPolicy
from tensorwasm.values import Deadline


def tell(tmp_path, runtime, story, module=GUEST, **options):
    """Run a story with a service that has one function of tenant 1."""
    deployed = options.pop("options", FunctionOptions())

    async def run():
        async with opened(tmp_path, runtime=runtime, **options) as service:
            made = await service.functions.deploy(1, "guest", module, deployed)
            await story(service, made.id)
            statistics = service.invocations.statistics()
            assert statistics.running == 0
            for gate in statistics.gates.values():
                assert gate.free == gate.slots
            assert not any(service.quotas.usage(1)[name] for name in ("instances", "memory_bytes"))

    asyncio.run(run())


def number(chunk):
    return int.from_bytes(chunk, "little")


def test_a_short_guest_ends_inline(tmp_path, runtime):
    async def story(service, function_id):
        resolved = await service.functions.resolve(1, function_id)
        while not service.invocations.statistics().inline:  # but where another process had the processor
            outcome = service.invocations.begin(
                service.admission.admit_tenant(1), resolved, InvocationRequest("add", (2, 3))
            )
            assert (outcome if isinstance(outcome, Invocation) else await outcome).values == (5,)

    tell(tmp_path, runtime, story, ADD)


def test_a_long_guest_without_imports_is_restarted_elsewhere(tmp_path, runtime):
    async def story(service, function_id):
        outcomes = [
            await service.invocations.invoke(
                service.admission.admit_tenant(1), function_id, InvocationRequest("sum", (n,))
            )
            for n in (3_000_000, 3, 3_000_000)
        ]
        assert [each.values[0] for each in outcomes] == [4_500_001_500_000, 6, 4_500_001_500_000]
        with pytest.raises(InvokeTimeout):
            await service.invocations.invoke(
                service.admission.admit_tenant(1),
                function_id,
                InvocationRequest("sum", (1 << 60,), deadline=Deadline.after(0.1)),
            )

    tell(tmp_path, runtime, story, SUM)


def test_input_and_output_of_a_guest(tmp_path, runtime):
    async def story(service, function_id):
        outcome = await service.invocations.invoke(
            service.admission.admit_tenant(1), function_id, InvocationRequest("echo", input=b"a prompt")
        )
        assert (outcome.values, outcome.chunks) == ((8,), (b"a prompt",))
        assert (
            await service.invocations.invoke(service.admission.admit_tenant(1), function_id, InvocationRequest("say"))
        ).stdout == b"hi"
        outcome = await service.invocations.invoke(service.admission.admit_tenant(1), function_id, InvocationRequest())
        assert (outcome.export, outcome.values) == ("main", (7,))

    tell(tmp_path, runtime, story)


@pytest.mark.parametrize("options", [FunctionOptions(), FunctionOptions(warm=2)], ids=["fresh", "warm"])
def test_guests_with_a_start_function(tmp_path, runtime, options):
    async def story(service, function_id):
        for _ in range(3):
            assert (
                await service.invocations.invoke(service.admission.admit_tenant(1), function_id, InvocationRequest())
            ).values == (42,)

    tell(tmp_path, runtime, story, START, options=options)


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (InvocationRequest("nothing"), MissingExport),
        (InvocationRequest("count", ("x",)), InvalidArgs),
        (InvocationRequest("count", (0,) * 257), TooManyArgs),
        (InvocationRequest("say", env=(("a=", "b"),)), InvalidArgs),
        (InvocationRequest("trap"), GuestTrap),
        (InvocationRequest("spin", deadline=Deadline.after(0.05)), InvokeTimeout),
        (InvocationRequest("say", deadline=Deadline.after(0.0)), InvokeTimeout),
    ],
)
def test_a_failure_raises_its_kind_and_holds_nothing(tmp_path, runtime, ask, error):
    async def story(service, function_id):
        with pytest.raises(error):
            await service.invocations.invoke(service.admission.admit_tenant(1), function_id, ask)

    tell(tmp_path, runtime, story)


def test_a_function_s_timeout_overrides_the_client_s_deadline(tmp_path, runtime):
    async def story(service, function_id):
        for deadline in (Deadline(), Deadline.after(60.0)):
            began_s = time.monotonic()
            with pytest.raises(InvokeTimeout):
                await service.invocations.invoke(
                    service.admission.admit_tenant(1), function_id, InvocationRequest("spin", deadline=deadline)
                )
            assert time.monotonic() - began_s < 20

    tell(tmp_path, runtime, story, options=FunctionOptions(timeout_s=0.05))


def test_a_client_that_leaves_ends_its_guest(tmp_path, runtime):
    async def story(service, function_id):
        task = asyncio.create_task(
            service.invocations.invoke(service.admission.admit_tenant(1), function_id, InvocationRequest("spin"))
        )
        await until(lambda: service.runtime.fibers.statistics().running)
        assert service.quotas.usage(1)["instances"] == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not service.runtime.fibers.statistics().running)

    tell(tmp_path, runtime, story)


def test_a_long_guest_does_not_hold_the_event_loop(tmp_path, runtime):
    async def story(service, function_id):
        task = asyncio.create_task(
            service.invocations.invoke(
                service.admission.admit_tenant(1), function_id, InvocationRequest("spin", deadline=Deadline.after(0.3))
            )
        )
        turns = 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert isinstance(task.exception(), InvokeTimeout)
        assert turns > 20

    tell(tmp_path, runtime, story)


def test_quotas_are_held_while_a_guest_runs(tmp_path, runtime):
    async def story(service, function_id):
        service.identities.policies[1] = TenantPolicy(quotas={"instances": 2})
        asks = [
            service.invocations.invoke(
                service.admission.admit_tenant(1), function_id, InvocationRequest("spin", deadline=Deadline.after(0.2))
            )
            for _ in range(5)
        ]
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
        assert sorted(type(each).__name__ for each in outcomes) == ["InvokeTimeout"] * 2 + ["QuotaExceeded"] * 3
        service.identities.policies[1] = TenantPolicy(quotas={"memory_bytes": 1})
        with pytest.raises(QuotaExceeded, match="memory_bytes"):
            await service.invocations.invoke(service.admission.admit_tenant(1), function_id, InvocationRequest("say"))

    tell(tmp_path, runtime, story)


def test_invocations_beyond_the_slots_wait(tmp_path, runtime):
    async def story(service, function_id):
        service.invocations._cpu = type(service.invocations._cpu)(1)
        resolved = await service.functions.resolve(1, function_id)
        slow = asyncio.ensure_future(
            service.invocations.begin(
                service.admission.admit_tenant(1), resolved, InvocationRequest("spin", deadline=Deadline.after(0.05))
            )
        )
        late = service.invocations.begin(
            service.admission.admit_tenant(1), resolved, InvocationRequest("say", deadline=Deadline.after(0.01))
        )
        with pytest.raises(InvokeTimeout):
            await late
        assert (
            await service.invocations.begin(service.admission.admit_tenant(1), resolved, InvocationRequest("say"))
        ).stdout == b"hi"
        with pytest.raises(InvokeTimeout):
            await slow

    tell(tmp_path, runtime, story)


def test_usage_is_counted(tmp_path, runtime):
    async def story(service, function_id):
        await service.invocations.invoke(
            service.admission.admit_tenant(1), function_id, InvocationRequest("echo", input=b"1234")
        )
        with pytest.raises(GuestTrap):
            await service.invocations.invoke(service.admission.admit_tenant(1), function_id, InvocationRequest("trap"))
        async with service.invocations.stream(
            service.admission.admit_tenant(1), function_id, InvocationRequest("echo", input=b"12")
        ) as stream:
            assert [chunk async for chunk in stream] == [b"12"]
        requests, errors, cpu_us, gpu_us, launches, bytes_in, bytes_out = service.usage._counts[1]
        assert (requests, errors, gpu_us, launches, bytes_in, bytes_out) == (3, 1, 0, 0, 6, 6)
        assert cpu_us > 0

    tell(tmp_path, runtime, story)


class FailingWorkers:
    """Workers whose guests trap after some time."""

    restarts = 0

    def __init__(self, devices=("emulator",)):
        self.devices = devices

    @property
    def executor(self):
        return self

    def submit(self, request, listener=None):
        ticket = PendingInvocation()
        self.send(request, ticket)
        return ticket

    def send(self, request, ticket):
        asyncio.get_running_loop().call_later(0.02, ticket.settle, GuestTrap("unreachable", "unreachable"))

    def statistics(self):
        return ()

    async def close(self):
        pass


def test_a_failed_guest_with_a_device_is_charged_device_time(tmp_path, runtime):
    async def story(service, _):
        granted = await service.functions.deploy(1, "gpu", GUEST, FunctionOptions(grants=("cuda",)))
        service.invocations.workers = FailingWorkers()
        for seconds in (None, 0.01):  # it traps, and then its caller leaves
            call = asyncio.ensure_future(
                service.invocations.invoke(service.admission.admit_tenant(1), granted.id, InvocationRequest("say"))
            )
            await asyncio.wait([call], timeout=seconds)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        async with service.invocations.stream(
            service.admission.admit_tenant(1), granted.id, InvocationRequest("say")
        ) as stream:
            assert [chunk async for chunk in stream] == []
        assert service.quotas.usage(1)["gpu_us_per_hour"] > 45_000
        requests, errors, cpu_us, gpu_us, *_ = service.usage._counts[1]
        assert (requests, errors, gpu_us) == (3, 3, cpu_us)
        service.identities.policies[1] = TenantPolicy(quotas={"gpu_us_per_hour": 40_000})
        with pytest.raises(QuotaExceeded, match="gpu_us_per_hour"):
            await service.invocations.invoke(service.admission.admit_tenant(1), granted.id, InvocationRequest("say"))

    tell(tmp_path, runtime, story)


@pytest.mark.parametrize(
    ("offload", "devices", "charged"),
    [
        ("auto", ("emulator",), False),  # loops run on all cores
        ("auto", ("emulator", "cuda:0"), True),
        ("gpu", ("emulator",), True),
        ("cpu", ("cuda:0",), False),
    ],
)
def test_a_failed_guest_with_loops_is_charged_device_time_if_they_may_have_run_there(
    tmp_path, runtime, offload, devices, charged
):
    async def story(service, _):
        made = await service.functions.deploy(1, "loops", GUEST, FunctionOptions(offload=offload))
        service.invocations.workers = FailingWorkers(devices)
        with pytest.raises(GuestTrap):
            await service.invocations.invoke(service.admission.admit_tenant(1), made.id, InvocationRequest("say"))
        requests, errors, cpu_us, gpu_us, *_ = service.usage._counts[1]
        assert (requests, errors, gpu_us) == (1, 1, cpu_us if charged else 0)
        assert cpu_us > 15_000
        assert (service.quotas.usage(1)["gpu_us_per_hour"] > 0) == charged

    tell(tmp_path, runtime, story)


# ---------------------------------------------------------------- streams


def test_a_stream_gives_every_chunk_and_then_the_outcome(tmp_path, runtime):
    async def story(service, function_id):
        async with service.invocations.stream(
            service.admission.admit_tenant(1), function_id, InvocationRequest("count", (100,))
        ) as stream:
            with pytest.raises(InternalError):
                _ = stream.outcome
            taken = [number(chunk) async for chunk in stream]
            assert taken == list(range(100))
            assert (stream.outcome.values, stream.outcome.chunks) == ((0,), ())

    tell(tmp_path, runtime, story)


def test_main_streams_too_where_there_is_no_start(tmp_path, runtime):
    async def story(service, function_id):
        async with service.invocations.stream(
            service.admission.admit_tenant(1), function_id, InvocationRequest()
        ) as stream:
            assert [number(chunk) async for chunk in stream] == [0, 1]
            assert stream.outcome.values == (7,)

    tell(tmp_path, runtime, story)


def test_chunks_of_a_failed_guest_come_before_its_error(tmp_path, runtime):
    async def story(service, function_id):
        async with service.invocations.stream(
            service.admission.admit_tenant(1), function_id, InvocationRequest("trap")
        ) as stream:
            assert [number(chunk) async for chunk in stream] == [0]
            with pytest.raises(GuestTrap):
                _ = stream.outcome

    tell(tmp_path, runtime, story)


def test_a_stream_of_an_unknown_export_is_refused_before_it_begins(tmp_path, runtime):
    async def story(service, function_id):
        with pytest.raises(MissingExport):
            async with service.invocations.stream(
                service.admission.admit_tenant(1), function_id, InvocationRequest("nothing")
            ):
                raise AssertionError

    tell(tmp_path, runtime, story)


def test_a_slow_client_blocks_only_its_guest(tmp_path, runtime):
    async def story(service, function_id):
        async with service.invocations.stream(
            service.admission.admit_tenant(1), function_id, InvocationRequest("count", (100_000,))
        ) as stream:
            assert number(await anext(stream)) == 0
            await until(lambda: len(stream._channel._chunks) == DEPTH)
            others = [
                service.invocations.invoke(service.admission.admit_tenant(1), function_id, InvocationRequest("say"))
                for _ in range(50)
            ]
            assert {each.stdout for each in await asyncio.gather(*others)} == {b"hi"}
            assert len(stream._channel._chunks) == DEPTH
            assert [number(await anext(stream)) for _ in range(100)] == list(range(1, 101))

    tell(tmp_path, runtime, story)


def test_the_deadline_ends_a_guest_that_waits_for_its_client(tmp_path, runtime):
    async def story(service, function_id):
        ask = InvocationRequest("count", (100_000,), deadline=Deadline.after(0.1))
        async with service.invocations.stream(service.admission.admit_tenant(1), function_id, ask) as stream:
            await until(stream._pending.done)
            assert len([chunk async for chunk in stream]) == DEPTH
            with pytest.raises(InvokeTimeout):
                _ = stream.outcome

    tell(tmp_path, runtime, story)


@pytest.mark.parametrize("export", ["count", "spin"])
def test_leaving_a_stream_ends_its_guest(tmp_path, runtime, export):
    async def story(service, function_id):
        ask = InvocationRequest(export, (1 << 30,) if export == "count" else ())
        async with service.invocations.stream(service.admission.admit_tenant(1), function_id, ask) as stream:
            pass
        assert stream._pending.done()
        assert isinstance(stream.result, GuestTrap) or stream.result.values == (-3,)

    tell(tmp_path, runtime, story)


def test_cancelling_a_task_in_a_stream_ends_its_guest(tmp_path, runtime):
    async def story(service, function_id):
        began = asyncio.Event()

        async def listen():
            async with service.invocations.stream(
                service.admission.admit_tenant(1), function_id, InvocationRequest("spin")
            ) as stream:
                began.set()
                await anext(stream)

        task = asyncio.create_task(listen())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert service.invocations.statistics().running == 0

    tell(tmp_path, runtime, story)


# ---------------------------------------------------------------- the end


def test_closing_refuses_new_invocations_and_waits_for_the_running_ones(tmp_path, runtime):
    async def run():
        async with opened(tmp_path, runtime=runtime) as service:
            made = await service.functions.deploy(1, "guest", GUEST)
            await service.functions.resolve(1, made.id)
            ask = InvocationRequest("spin", deadline=Deadline.after(0.2))
            task = asyncio.create_task(service.invocations.invoke(service.admission.admit_tenant(1), made.id, ask))
            await asyncio.sleep(0)
            closing = asyncio.create_task(service.invocations.close(60.0))
            await asyncio.sleep(0)
            with pytest.raises(Draining):
                await service.invocations.invoke(service.admission.admit_tenant(1), made.id, InvocationRequest("say"))
            with pytest.raises(Draining):
                async with service.invocations.stream(
                    service.admission.admit_tenant(1), made.id, InvocationRequest("say")
                ):
                    raise AssertionError
            await closing
            assert isinstance(task.exception(), InvokeTimeout)

    asyncio.run(run())


def test_a_deadline_that_passes_while_the_module_is_compiled_is_not_the_guests(tmp_path, runtime):
    async def story(service, function_id):
        functions, ends, load = service.functions, Deadline.after(0.2), service.functions._load

        async def load_late(*asked):
            loaded = await load(*asked)
            while not ends.expired():  # noqa: ASYNC110 - a deadline rings no bell
                await asyncio.sleep(0)
            return loaded

        functions.find, functions._load = lambda *_: None, load_late  # as before its first call
        with pytest.raises(CompileTimeout, match="while the module was being compiled"):
            await service.invocations.invoke(
                service.admission.admit_tenant(1), function_id, InvocationRequest("say", deadline=ends)
            )
        assert (
            await service.invocations.invoke(service.admission.admit_tenant(1), function_id, InvocationRequest("say"))
        ).stdout == b"hi"

    tell(tmp_path, runtime, story)
