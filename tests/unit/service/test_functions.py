"""Functions: deployed, updated, found, and nothing half done."""

import asyncio
import itertools
import threading
import time

import pytest

from fakes import postgres
from fakes.services import ADD, START, SUB, opened
from strategies.oci import Image
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.opening import open_store
from tensorwasm.database.functions import FunctionOptions
from tensorwasm.errors import (
    ArtifactNotFound,
    Conflict,
    DatabaseUnavailable,
    InvalidArgs,
    InvalidName,
    InvalidRequest,
    InvalidWasm,
    NotFound,
    StoreUnavailable,
)
from tensorwasm.service.clock import Clock
from tensorwasm.service.functions.loading import Loader, LoadKey
from tensorwasm.service.functions.modules import GRACE_S, name_of, parse_hash
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.tenancy.quotas import TenantPolicy
from tensorwasm.values import Limits

ASK = InvocationRequest("add", (5, 3))
UNKNOWN = "00000000-0000-4000-8000-000000000000"


async def answer(service, tenant, reference):
    return (await service.invocations.invoke(service.admission.admit_tenant(tenant), reference, ASK)).values[0]


def hash_of(module):
    return f"blake3:{blake3(module).hex()}"


def test_a_function_from_its_deploy_to_its_end(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            functions = service.functions
            made = await functions.deploy(7, "sum", ADD)
            assert (made.tenant, made.name, made.current) == (7, "sum", 1)
            assert await functions.get(7, made.id) == made
            assert await answer(service, 7, made.id) == 8
            changed = await functions.update(7, made.id, module=SUB)
            assert changed.current == 2
            assert [await answer(service, 7, f"{made.id}{at}") for at in ("", "@1", "@2")] == [2, 8, 2]
            await functions.set_alias(7, made.id, "stable", 1)
            assert await answer(service, 7, f"{made.id}@stable") == 8
            await functions.set_alias(7, made.id, "stable", 2)
            assert await answer(service, 7, f"{made.id}@stable") == 2
            assert [each.alias for each in await functions.aliases(7, made.id)] == ["stable"]
            assert (await functions.promote(7, made.id, 1)).current == 1
            assert await answer(service, 7, made.id) == 8
            assert [each.number for each in await functions.versions(7, made.id)] == [1, 2]
            await functions.delete_alias(7, made.id, "stable")
            await functions.delete(7, made.id)
            for gone in (made.id, f"{made.id}@1", f"{made.id}@stable"):
                with pytest.raises(NotFound):
                    await functions.resolve(7, gone)
            with pytest.raises(NotFound):
                await functions.delete(7, made.id)

    asyncio.run(story())


def test_a_name_is_accepted_like_an_id_and_means_the_newest(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            functions = service.functions
            first = await functions.deploy(7, "sum", ADD)
            assert await answer(service, 7, "sum") == 8
            second = await functions.deploy(7, "sum", SUB)
            assert await answer(service, 7, "sum") == 2  # remembered as the first, and forgotten
            assert (await functions.get(7, "sum")).id == second.id
            await functions.set_alias(7, "sum", "live", 1)
            assert [await answer(service, 7, f"sum@{at}") for at in ("1", "live")] == [2, 2]
            assert [each.number for each in await functions.versions(7, "sum")] == [1]
            assert [each.alias for each in await functions.aliases(7, "sum")] == ["live"]
            await functions.delete_alias(7, "sum", "live")
            assert (await functions.update(7, "sum", module=ADD)).id == second.id
            assert (await functions.promote(7, "sum", 1)).current == 1
            await functions.update(7, first.id, name="other")
            assert await answer(service, 7, "other") == 8
            await functions.update(7, second.id, name="other")
            assert await answer(service, 7, "other") == 2
            await functions.delete(7, "other")
            assert await answer(service, 7, "other") == 8
            odd = await functions.deploy(7, "other@1", SUB)
            assert await answer(service, 7, "other@1") == 2  # a name goes before a version
            await functions.delete(7, odd.id)
            assert await answer(service, 7, "other@1") == 8
            for tenant, name in ((8, "other"), (7, "sum"), (7, "other@7"), (7, "other@none"), (7, "OTHER")):
                with pytest.raises(NotFound):
                    await functions.resolve(tenant, name)

    asyncio.run(story())


def test_a_deploy_adds_a_version_if_requested(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            functions = service.functions
            options = FunctionOptions(timeout_s=4.0)
            made = await functions.deploy(7, "sum", ADD, options, if_exists="new_version")
            again = await functions.deploy(7, "sum", SUB, if_exists="new_version")
            assert (again.id, again.current) == (made.id, 2)
            assert (await functions.version(7, made.id, 2)).options == options
            usual = await functions.deploy(7, "sum", SUB, FunctionOptions(), if_exists="new_version")
            assert (await functions.version(7, made.id, usual.current)).options == FunctionOptions()
            assert (await functions.deploy(8, "sum", ADD, if_exists="new_version")).id != made.id
            assert (await functions.deploy(7, "sum", ADD)).id != made.id
            with pytest.raises(Conflict):
                await functions.deploy(7, "sum", ADD, if_exists="refuse")
            with pytest.raises(NotFound, match="module"):
                await functions.deploy(7, "sum", "blake3:" + "0" * 64, if_exists="new_version")

    asyncio.run(story())


def test_concurrent_deploys_of_one_name_make_one_function(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            functions = service.functions
            many = [functions.deploy(7, "sum", module, if_exists="new_version") for module in (ADD, SUB) * 4]
            made = await asyncio.gather(*many)
            assert len({each.id for each in made}) == 1
            assert sorted(each.current for each in made) == list(range(1, 9))
            assert await functions.tidy() == (0, 0)
            refused = [functions.deploy(7, "new", ADD, if_exists="refuse") for _ in range(4)]
            found = await asyncio.gather(*refused, return_exceptions=True)
            assert sorted(type(each).__name__ for each in found) == ["Conflict"] * 3 + ["FunctionRecord"]

    asyncio.run(story())


def test_everything_is_there_after_a_restart(tmp_path, runtime):
    async def before():
        async with opened(tmp_path, runtime=runtime) as service:
            made = await service.functions.deploy(3, "one", ADD, FunctionOptions(env=(("A", "b"),), timeout_s=4.0))
            await service.functions.update(3, made.id, module=SUB, name="two")
            await service.functions.set_alias(3, made.id, "old", 1)
            return made.id

    async def after(function_id):
        async with opened(tmp_path, runtime=runtime) as service:
            found = await service.functions.get(3, function_id)
            assert (found.name, found.current) == ("two", 2)
            assert [await answer(service, 3, f"{function_id}{at}") for at in ("", "@old")] == [2, 8]
            version = await service.functions.version(3, function_id, 1)
            assert version.options == FunctionOptions(env=(("A", "b"),), timeout_s=4.0)
            assert await service.functions.get(3, "two") == found

    asyncio.run(after(asyncio.run(before())))


def test_another_tenant_s_function_is_not_found(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            functions = service.functions
            made = await functions.deploy(1, "mine", ADD)
            assert await answer(service, 1, made.id) == 8  # and it is remembered for its own tenant alone
            for tenant, function_id in ((2, made.id), (1, UNKNOWN)):
                for ask in (
                    functions.get(tenant, function_id),
                    functions.resolve(tenant, function_id),
                    functions.resolve(tenant, f"{function_id}@1"),
                    functions.update(tenant, function_id, name="x"),
                    functions.update(tenant, function_id, module=SUB),
                    functions.promote(tenant, function_id, 1),
                    functions.delete(tenant, function_id),
                    functions.versions(tenant, function_id),
                    functions.version(tenant, function_id, 1),
                    functions.aliases(tenant, function_id),
                    functions.set_alias(tenant, function_id, "a", 1),
                    functions.delete_alias(tenant, function_id, "a"),
                    service.invocations.invoke(service.admission.admit_tenant(tenant), function_id, ASK),
                ):
                    with pytest.raises(NotFound):
                        await ask
            assert await functions.list(2) == ()
            with pytest.raises(NotFound):
                await functions.get(2, "mine")
            with pytest.raises(Conflict):
                await functions.deploy(2, "mine", ADD, function_id=made.id)

    asyncio.run(story())


def test_pages_continue_after_deletions(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            functions = service.functions
            made = [await functions.deploy(9, f"f{number}", ADD) for number in range(7)]
            await functions.deploy(10, "other", ADD)
            first = await functions.list(9, limit=3)
            await functions.delete(9, first[-1].id)
            rest = await functions.list(9, first[-1].cursor)
            assert {each.id for each in (*first, *rest)} == {each.id for each in made}
            assert len(first) + len(rest) == 7
            for bad in ("x", "1", "-1.a", "1" * 30 + ".a", "1." + "a" * 99):
                with pytest.raises(InvalidRequest):
                    await functions.list(9, bad)
            for limit in (0, 1001):
                with pytest.raises(InvalidRequest):
                    await functions.list(9, limit=limit)

    asyncio.run(story())


def test_a_hash_finds_only_the_tenant_s_own_module(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            functions = service.functions
            await functions.deploy(1, "mine", ADD)
            again = await functions.deploy(1, "again", hash_of(ADD))
            assert await answer(service, 1, again.id) == 8
            refusals = []
            for tenant, digest in ((2, hash_of(ADD)), (1, hash_of(SUB)), (2, hash_of(SUB))):
                with pytest.raises(NotFound) as refused:
                    await functions.deploy(tenant, "f", digest)
                refusals.append(refused.value.message)
            assert len(set(refusals)) == 1
            service.store.put("1", "kernel", b"no module")
            with pytest.raises(NotFound):
                await functions.deploy(1, "f", hash_of(b"no module"))

    asyncio.run(story())


@pytest.mark.parametrize(
    "text", ["", "blake3:", "blake3:" + "g" * 64, "sha256:" + "0" * 64, "0" * 71, "blake3:" + " " * 64]
)
def test_invalid_hashes(text):
    with pytest.raises(InvalidRequest):
        parse_hash(text)


def test_an_image_is_deployed_as_its_module(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            made = await service.functions.deploy(1, "image", Image(ADD).tar())
            assert await answer(service, 1, made.id) == 8
            assert (await service.functions.version(1, made.id, 1)).module == parse_hash(hash_of(ADD))

    asyncio.run(story())


def test_a_refused_deploy_leaves_nothing(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            deploy = service.functions.deploy
            for name, module, options, error in (
                ("", ADD, FunctionOptions(), InvalidName),
                ("f", b"\0asm\1\0\0\0junk", FunctionOptions(), InvalidWasm),
                ("f", b"", FunctionOptions(), InvalidWasm),
                ("f", ADD, FunctionOptions(grants=("dir:/",)), InvalidArgs),
                ("f", ADD, FunctionOptions(memory_mib=0), InvalidArgs),
                ("f", ADD, FunctionOptions(memory_mib=1 << 20), InvalidArgs),
                ("f", ADD, FunctionOptions(timeout_s=0.0), InvalidArgs),
                ("f", ADD, FunctionOptions(timeout_s=float("nan")), InvalidArgs),
                ("f", ADD, FunctionOptions(timeout_s=1e9), InvalidArgs),
                ("f", ADD, FunctionOptions(warm=-1), InvalidArgs),
                ("f", ADD, FunctionOptions(memory_kind="magic"), InvalidArgs),
                ("f", ADD, FunctionOptions(env=(("a=b", ""),)), InvalidArgs),
            ):
                with pytest.raises(error):
                    await deploy(5, name, module, options)
            assert await service.functions.list(5) == ()
            assert service.store.list("5") == ()

    asyncio.run(story())


class Failing:
    """A store or a database whose method fails, before or after it did what it does."""

    def __init__(self, inner, method, error, after):
        self._inner, self._method, self._error, self._after = inner, method, error, after

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if name != self._method:
            return found

        def fail(*args, **kwargs):
            if self._after:
                found(*args, **kwargs)
            raise self._error

        async def fail_later(*args, **kwargs):
            if self._after:
                await found(*args, **kwargs)
            raise self._error

        return fail_later if asyncio.iscoroutinefunction(found) else fail


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["put", "bind", "write"])
def test_a_deploy_that_fails_at_any_step_is_tidied(tmp_path, runtime, step, after):
    now = [time.time_ns() // 1_000_000]

    async def story():
        async with opened(tmp_path, runtime=runtime, clock=Clock(lambda: now[0])) as service:
            functions, modules = service.functions, service.functions.modules
            kept = await functions.deploy(4, "kept", SUB)
            owner, attribute, error = (
                (functions, "_database", DatabaseUnavailable("gone"))
                if step == "write"
                else (modules, "_store", StoreUnavailable("gone"))
            )
            whole = getattr(owner, attribute)
            setattr(owner, attribute, Failing(whole, step, error, after))
            with pytest.raises(type(error)):
                await functions.deploy(4, "lost", ADD)
            setattr(owner, attribute, whole)
            there = await functions.list(4)
            made = step == "write" and after  # it failed to say that it was written
            assert sorted(each.name for each in there) == ["kept", "lost"][: 1 + made]
            for each in there:
                await functions.resolve(4, each.id)
            # Nobody touches what is new; later, what nothing refers to goes, and nothing else.
            digest = parse_hash(hash_of(ADD))
            before = service.store.names("4")
            await functions.tidy()
            assert service.store.names("4") == before
            now[0] = (
                service.store.stat("4", parse_hash(hash_of(SUB))).made_ns // 1_000_000 + int(GRACE_S * 1000) + 60_000
            )
            await functions.tidy()
            wanted = {(each.id, (await functions.version(4, each.id, 1)).module) for each in there}
            assert set(service.store.names("4")) == {name_of(*each) for each in wanted}
            service.store.collect(0)
            if made:
                service.store.stat("4", digest)
            else:
                with pytest.raises(ArtifactNotFound):
                    service.store.stat("4", digest)
            service.store.stat("4", parse_hash(hash_of(SUB)))
            assert await answer(service, 4, kept.id) == 2

    asyncio.run(story())


def test_deleting_a_function_releases_its_module_only(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            one, two = [await service.functions.deploy(1, name, ADD) for name in ("one", "two")]
            await service.functions.update(1, one.id, module=SUB)
            await service.functions.delete(1, one.id)
            assert list(service.store.names("1")) == [name_of(two.id, parse_hash(hash_of(ADD)))]
            service.store.collect(0)
            assert [each.digest for each in service.store.list("1")] == [parse_hash(hash_of(ADD))]

    asyncio.run(story())


def test_a_missing_name_is_bound_again(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            made = await service.functions.deploy(1, "one", ADD)
            name = name_of(made.id, parse_hash(hash_of(ADD)))
            service.store.unbind("1", name)
            assert await service.functions.tidy() == (0, 1)
            assert name in service.store.names("1")

    asyncio.run(story())


def test_concurrent_updates_each_add_a_version(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            made = await service.functions.deploy(1, "one", ADD)

            async def look():
                while (await service.functions.get(1, made.id)).current < 9:
                    await service.functions.resolve(1, made.id)

            looking = asyncio.create_task(look())
            updates = [service.functions.update(1, made.id, module=(ADD, SUB)[number % 2]) for number in range(8)]
            await asyncio.gather(*updates)
            await looking
            versions = await service.functions.versions(1, made.id)
            assert [each.number for each in versions] == list(range(1, 10))
            resolved = await service.functions.resolve(1, made.id)
            assert (resolved.version, resolved.record.current) == (versions[-1], 9)

    asyncio.run(story())


def test_concurrent_updates_of_options_and_module_are_both_kept(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            made = await service.functions.deploy(1, "one", ADD)
            admit = service.functions._admit

            async def admit_late(*asked):
                service.functions._admit = admit
                await service.functions.update(1, made.id, module=SUB)
                return await admit(*asked)

            service.functions._admit = admit_late
            changed = await service.functions.update(1, made.id, options=FunctionOptions(timeout_s=4.0))
            assert changed.current == 3
            assert await answer(service, 1, made.id) == 2
            assert (await service.functions.version(1, made.id, 3)).options.timeout_s == 4.0

    asyncio.run(story())


def test_an_update_that_always_conflicts_raises_conflict(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            made = await service.functions.deploy(1, "one", ADD)
            await service.functions.update(1, made.id, module=SUB)
            admit, turns = service.functions._admit, itertools.cycle((1, 2))

            async def admit_late(*asked):
                await service.functions.promote(1, made.id, next(turns))
                return await admit(*asked)

            service.functions._admit = admit_late
            with pytest.raises(Conflict):
                await service.functions.update(1, made.id, options=FunctionOptions(timeout_s=4.0))
            assert len(await service.functions.versions(1, made.id)) == 2

    asyncio.run(story())


def test_an_update_of_a_cancelled_caller_takes_effect(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            made = await service.functions.deploy(1, "one", ADD)
            await service.functions.update(1, made.id, module=SUB)
            await service.functions.resolve(1, made.id)
            task = asyncio.create_task(service.functions.promote(1, made.id, 1))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await service.functions.set_alias(1, made.id, "later", 1)  # it comes after what was left
            assert await answer(service, 1, made.id) == 8

    asyncio.run(story())


def test_concurrent_callers_share_one_load(tmp_path, runtime):
    async def deploy():
        async with opened(tmp_path, runtime=runtime) as service:
            return (await service.functions.deploy(1, "one", START)).id

    async def ask(function_id):
        async with opened(tmp_path, runtime=runtime) as service:
            loader = service.functions.loader
            first = asyncio.create_task(service.functions.resolve(1, function_id))
            others = [asyncio.create_task(service.functions.resolve(1, f"{function_id}@1")) for _ in range(8)]
            await service.functions.get(1, function_id)
            first.cancel()  # who leaves takes nothing from the others
            found = await asyncio.gather(*others)
            assert len({id(each.function) for each in found}) == 1
            assert loader.loads == 1

    asyncio.run(ask(asyncio.run(deploy())))


def test_a_load_does_not_wait_for_another_tenant_s_thousands(runtime):
    async def story():
        loader, go = Loader(runtime, lambda _tenant: TenantPolicy()), threading.Event()

        def fetch():
            assert go.wait(60)
            return ADD

        keys = [LoadKey(1, blake3(ADD), Limits(), f"f{number}") for number in range(50)]
        flood = [asyncio.ensure_future(loader.load(key, fetch)) for key in keys]
        await asyncio.sleep(0)  # all of them have asked
        try:
            found = await asyncio.wait_for(loader.load(LoadKey(2, blake3(ADD), Limits(), "one"), lambda: ADD), 60)
            assert found.module == ADD
            assert not any(each.done() for each in flood)
        finally:
            go.set()
        await asyncio.gather(*flood)
        assert loader.loads == 51
        await loader.close()

    asyncio.run(story())


def test_compilations_have_the_weights_of_their_tenants(runtime):
    Loader(runtime, lambda tenant: TenantPolicy(weight=float(tenant)))
    assert [runtime.deployer.weigh(tenant) for tenant in ("3", "7", "default")] == [3.0, 7.0, 1.0]


def test_changes_by_other_servers_are_seen_after_the_ttl(tmp_path, runtime):
    if reason := postgres.missing():
        pytest.skip(reason)

    async def story(url):
        quiet = {"TENSOR_WASM_API_AUDIT_LOG": "none", "TENSOR_WASM_DATABASE": url}  # a log is one process's
        async with (
            opened(tmp_path, runtime=runtime, environment=quiet) as one,
            opened(tmp_path, runtime=runtime, environment=quiet) as two,
        ):
            two.functions._ttl_s = 0.0
            made = await one.functions.deploy(1, "one", ADD)
            assert await answer(two, 1, made.id) == 8
            await one.functions.update(1, made.id, module=SUB)
            assert await answer(two, 1, made.id) == 2

    with postgres.running() as server:
        asyncio.run(story(server.url()))


def test_the_data_folder_is_the_service_s_own(tmp_path, runtime):
    async def story():
        async with opened(tmp_path, runtime=runtime) as service:
            await service.functions.deploy(1, "one", ADD)
            assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
            assert {"service.db", "artifacts"} <= {each.name for each in service.folder.iterdir()}
            assert open_store(str(service.folder / "artifacts")).names("1")

    asyncio.run(story())
