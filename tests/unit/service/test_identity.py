"""Tokens and tenants administered: by capability, known at once here and soon elsewhere, never beyond who asks."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings

from fakes.blocking import BlockingExecutor
from strategies.identity import scope_sets, tenant_sets
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.engine.opening import open_database, sqlite_url
from tensorwasm.errors import (
    Conflict,
    DatabaseUnavailable,
    InvalidArgs,
    InvalidName,
    InvalidRequest,
    NotFound,
    ScopeDenied,
    TenantScopeDenied,
    Unauthorized,
)
from tensorwasm.service.admission.admission import Admission
from tensorwasm.service.clock import Clock
from tensorwasm.service.identity.cache import FRESH_S, KEEP_DEAD_MS, STALE_S, TIDY_ROUNDS, IdentityCache
from tensorwasm.service.identity.identity import (
    MAX_OVERLAP_S,
    MAX_TENANTS,
    TenantChange,
    Tenants,
    Tokens,
    open_identity,
)
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.authentication import Authenticator, TokenTable
from tensorwasm.tenancy.buckets import Buckets, RateLimiter
from tensorwasm.tenancy.principal import MAX_TENANT, SCOPES, USER_SCOPES, AdminCapability, Principal, Registry
from tensorwasm.tenancy.quotas import CAPS, Quotas, TenantPolicy

LISTED = "operators-own-token-0001"
ADMIN = frozenset({"admin", "invoke"})


USUAL = {"qps": 100, "streams": 64}


class Times:
    def __init__(self):
        self.unix_ms = 1_000_000
        self.monotonic_s = 100.0
        self.clock = Clock(lambda: self.unix_ms, lambda: self.monotonic_s)

    def pass_s(self, seconds):
        self.unix_ms += int(seconds * 1000)
        self.monotonic_s += seconds


class Process:
    """One process's part: its registry, its directory, and what they serve."""

    def __init__(self, database, times):
        self.database, self.times = database, times
        self.table = TokenTable()
        self.identities = IdentityCache(database, self.table, times.clock, caps=USUAL)
        self.registry, self.all = Registry.open()
        self.tokens = Tokens(database, self.identities, self.registry, times.clock)
        self.tenants = Tenants(database, self.identities, self.registry, times.clock)
        self.auth = Authenticator(self.table, self.identities.catch_up, now_unix_ms=lambda: times.unix_ms)

    def admit(self, tenants, scopes=ADMIN):
        return self.tenants.admit(Principal("bearer", "p", tenants, scopes))

    def knows(self, text):
        try:
            return self.auth.authenticate(f"Bearer {text}")
        except Unauthorized:
            return None


@pytest.fixture
def url(tmp_path):
    return sqlite_url(tmp_path / "data" / "service.db")


@pytest.fixture
def times():
    return Times()


@pytest.fixture
def database(url):
    database = BlockingExecutor(open_database(url))
    yield database
    database.close_now()


@pytest.fixture
def here(database, times):
    return Process(database, times)


@pytest.fixture
def there(database, times):
    return Process(database, times)


def run(coroutine):
    return asyncio.run(coroutine)


# ---------------------------------------------------------------- tokens


def test_a_new_token_is_valid_at_once_and_shown_once(here):
    new = run(here.tokens.create(here.all, "ann", {7, 8}, {"invoke"}, 2_000_000))
    assert here.knows(new.text) == Principal(
        "bearer", new.record.id, frozenset({7, 8}), frozenset({"invoke"}), 2_000_000
    )
    assert run(here.tokens.get(here.all, new.record.id)) == new.record
    assert run(here.tokens.list(here.all)) == [new.record]
    assert new.text not in repr(new)


@pytest.mark.rule("14-ended")
def test_a_revoked_token_is_refused_when_revoke_returns(here):
    async def revoke():
        new = await here.tokens.create(here.all, "ann", {7})
        assert here.knows(new.text)
        first = await here.tokens.revoke(here.all, new.record.id)
        assert here.knows(new.text) is None
        here.times.pass_s(1)
        assert await here.tokens.revoke(here.all, new.record.id) == first
        with pytest.raises(Unauthorized):
            await here.auth.authenticate_slowly(f"Bearer {new.text}")

    run(revoke())


@pytest.mark.rule("14-ended")
def test_a_read_that_began_before_a_revocation_does_not_undo_it(here):
    async def race():
        new = await here.tokens.create(here.all, "ann", {7})
        here.times.pass_s(1)
        await asyncio.gather(
            here.identities.catch_up(),
            here.tokens.revoke(here.all, new.record.id),
            here.identities.follow_once(),
        )
        assert here.knows(new.text) is None

    run(race())


@pytest.mark.rule("14-ended")
def test_a_cancelled_revocation_takes_effect(here):
    async def leave():
        new = await here.tokens.create(here.all, "ann", {7})
        task = asyncio.ensure_future(here.tokens.revoke(here.all, new.record.id))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.gather(*here.identities._changes)
        assert here.knows(new.text) is None
        assert (await here.tokens.get(here.all, new.record.id)).revoked_unix_ms is not None

    run(leave())


@pytest.mark.rule("14-ended")
@pytest.mark.parametrize(("overlap_s", "good"), [(0, False), (10, True)])
def test_a_rotated_token_is_valid_for_the_overlap(here, overlap_s, good):
    async def rotate():
        old = await here.tokens.create(here.all, "ann", {7}, {"invoke"})
        new = await here.tokens.rotate(here.all, old.record.id, overlap_s)
        assert bool(here.knows(old.text)) == good
        assert here.knows(new.text).scopes == {"invoke"}
        assert (new.record.replaces, new.record.name, new.record.tenants) == (old.record.id, "ann", frozenset({7}))
        here.times.pass_s(overlap_s)
        assert here.knows(old.text) is None
        assert here.knows(new.text)

    run(rotate())


def test_rotating_keeps_the_expiry_by_default(here):
    async def rotate():
        old = await here.tokens.create(here.all, "ann", {7}, expires_unix_ms=1_005_000)
        new = await here.tokens.rotate(here.all, old.record.id, 60)
        assert new.record.expires_unix_ms == 1_005_000
        assert (await here.tokens.get(here.all, old.record.id)).expires_unix_ms == 1_005_000
        later = await here.tokens.rotate(here.all, new.record.id, expires_unix_ms=9_000_000)
        assert later.record.expires_unix_ms == 9_000_000

    run(rotate())


def test_a_token_is_replaced_once_and_not_after_its_end(here):
    async def rotate():
        old = await here.tokens.create(here.all, "ann", {7})
        outcomes = await asyncio.gather(
            *(here.tokens.rotate(here.all, old.record.id, 60) for _ in range(5)), return_exceptions=True
        )
        assert sum(isinstance(each, Conflict) for each in outcomes) == 4
        ended = await here.tokens.create(here.all, "bob", {7}, expires_unix_ms=1_000_001)
        here.times.pass_s(1)
        with pytest.raises(Conflict, match="has ended"):
            await here.tokens.rotate(here.all, ended.record.id)

    run(rotate())


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (InvalidName, {"name": ""}),
        (InvalidName, {"name": "a\nb"}),
        (InvalidRequest, {"tenants": []}),
        (InvalidRequest, {"tenants": [-1]}),
        (InvalidRequest, {"tenants": [MAX_TENANT + 1]}),
        (InvalidRequest, {"tenants": range(MAX_TENANTS + 1)}),
        (InvalidRequest, {"scopes": []}),
        (InvalidRequest, {"scopes": ["everything"]}),
        (InvalidRequest, {"expires_unix_ms": 1_000_000}),
        (InvalidRequest, {"expires_unix_ms": 1 << 60}),
    ],
    ids=str,
)
def test_invalid_tokens_are_refused(here, error, arguments):
    with pytest.raises(error):
        run(here.tokens.create(here.all, **{"name": "ann", "tenants": [7]} | arguments))
    assert run(here.tokens.list(here.all)) == []


@pytest.mark.parametrize("overlap_s", [-1, MAX_OVERLAP_S + 1, float("nan"), float("inf")])
def test_an_overlap_out_of_its_range_is_refused(here, overlap_s):
    new = run(here.tokens.create(here.all, "ann", {7}))
    with pytest.raises(InvalidRequest):
        run(here.tokens.rotate(here.all, new.record.id, overlap_s))
    assert here.knows(new.text)


@pytest.mark.rule("14-minted")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(tenant_sets, scope_sets, tenant_sets, scope_sets)
def test_a_token_never_exceeds_its_creator_s_rights(here, tenants, scopes, asked, passed):
    scopes |= {"admin"}
    capability = here.admit(tenants, scopes)
    try:
        new = run(here.tokens.create(capability, "n", asked, passed))
    except (TenantScopeDenied, ScopeDenied):
        assert not passed <= scopes or (tenants is not None and (asked is None or not asked <= tenants))
        return
    principal = here.knows(new.text)
    assert principal.scopes <= scopes
    assert tenants is None or (principal.tenants is not None and principal.tenants <= tenants)


@pytest.mark.rule("14-minted")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(tenant_sets, scope_sets, tenant_sets, scope_sets)
def test_tokens_beyond_the_capability_cannot_be_rotated_or_revoked(here, tenants, scopes, owned, allowed):
    scopes |= {"admin"}
    old = run(here.tokens.create(here.all, "n", owned, allowed))
    capability = here.admit(tenants, scopes)
    reaches = tenants is None or (owned is not None and owned <= tenants)
    assert (old.record.id in {each.id for each in run(everything(here, capability))}) == reaches
    try:
        new = run(here.tokens.rotate(capability, old.record.id))
    except NotFound:
        assert not reaches
        for ask in (here.tokens.get, here.tokens.revoke):
            with pytest.raises(NotFound):
                run(ask(capability, old.record.id))
        assert here.knows(old.text)
    except ScopeDenied:
        assert not allowed <= scopes
        assert here.knows(old.text)
    else:
        assert reaches
        assert here.knows(new.text).scopes <= scopes


async def everything(process, capability):
    found, after = [], None
    while page := await process.tokens.list(capability, after, 1000):
        found += page
        after = page[-1].id
    return found


@pytest.mark.rule("14-capability")
def test_every_admin_method_refuses_a_capability_of_another_registry(here, there):
    new = run(here.tokens.create(here.all, "ann", {7}))
    for strange in (there.all, there.admit(None), AdminCapability(), None):
        asks = [
            here.tokens.create(strange, "x", {7}),
            here.tokens.get(strange, new.record.id),
            here.tokens.list(strange),
            here.tokens.rotate(strange, new.record.id),
            here.tokens.revoke(strange, new.record.id),
            here.tokens.ensure_first_token(strange),
            here.tenants.create(strange, 7, TenantChange()),
            here.tenants.get(strange, 7),
            here.tenants.list(strange),
            here.tenants.update(strange, 7, TenantChange()),
            here.tenants.disable(strange, 7),
        ]
        for ask in asks:
            with pytest.raises(ScopeDenied):
                run(ask)
    assert here.knows(new.text)


def test_pages_continue_after_the_last_token_seen(here):
    made = [run(here.tokens.create(here.all, str(n), {n % 2})).record for n in range(6) if here.times.pass_s(1) is None]
    capability = here.admit(frozenset({1}))
    assert run(here.tokens.list(capability, None, 2)) == [made[1], made[3]]
    assert run(here.tokens.list(capability, made[3].id, 2)) == [made[5]]
    for limit in (0, 1001, -1):
        with pytest.raises(InvalidRequest):
            run(here.tokens.list(capability, None, limit))


# ---------------------------------------------------------------- the first token


def test_the_first_token_has_all_rights_and_is_made_once(here, there):
    first = run(here.tokens.ensure_first_token(here.all))
    assert here.knows(first.text) == Principal("bearer", first.record.id, None, frozenset(SCOPES))
    assert run(here.tokens.ensure_first_token(here.all)) is None
    assert run(there.tokens.ensure_first_token(there.all)) is None


def test_a_first_token_is_made_again_when_none_is_valid(here):
    first = run(here.tokens.ensure_first_token(here.all))
    run(here.tokens.revoke(here.all, first.record.id))
    assert run(here.tokens.ensure_first_token(here.all)).text != first.text


def test_of_concurrent_processes_one_makes_the_first_token(here, there):
    async def begin():
        return await asyncio.gather(*(each.tokens.ensure_first_token(each.all) for each in (here, there) * 5))

    assert sum(each is not None for each in run(begin())) == 1


def test_the_first_token_requires_a_capability_for_everything(here):
    for capability in (here.admit(None), here.admit(frozenset({7}), frozenset(SCOPES))):
        with pytest.raises((ScopeDenied, TenantScopeDenied)):
            run(here.tokens.ensure_first_token(capability))


# ---------------------------------------------------------------- other processes


def test_another_process_sees_a_token_at_once_and_its_revocation_in_two_seconds(here, there):
    async def both():
        new = await here.tokens.create(here.all, "ann", {7})
        assert there.knows(new.text) is None
        assert await there.auth.authenticate_slowly(f"Bearer {new.text}") == here.knows(new.text)
        await here.tokens.revoke(here.all, new.record.id)
        assert there.knows(new.text)
        await there.identities.follow_once()
        assert there.knows(new.text) is None

    run(both())


def test_another_process_sees_a_policy_in_two_seconds(here, there):
    async def both():
        await here.tenants.update(here.all, 7, TenantChange(weight=5))
        await there.identities.follow_once()
        assert there.tenants.policy(7).weight == 5

    run(both())


def test_unknown_tokens_share_reads_at_intervals(here):
    async def flood():
        for _ in range(20):
            await asyncio.gather(*(here.identities.catch_up() for _ in range(50)))
        before = len(here.database.reads)
        here.times.pass_s(FRESH_S + 0.01)
        await asyncio.gather(*(here.identities.catch_up() for _ in range(50)))
        return before, len(here.database.reads) - before

    assert run(flood()) == (1, 1)


class Broken:
    """A database whose database does not answer."""

    def __init__(self, database):
        self.database, self.broken = database, False

    async def read(self, *arguments):
        if self.broken:
            raise DatabaseUnavailable("gone")
        return await self.database.read(*arguments)

    async def write(self, *arguments):
        return await self.database.write(*arguments)


@pytest.mark.rule("14-ended")
def test_without_a_database_tokens_are_accepted_for_thirty_seconds(database, times, caplog):
    broken = Broken(database)
    process = Process(broken, times)

    async def lose():
        new = await process.tokens.create(process.all, "ann", {7})
        await process.tenants.disable(process.all, 8)
        await process.identities.follow_once()
        broken.broken = True
        times.pass_s(STALE_S)
        await process.identities.follow_once()
        assert process.knows(new.text)
        times.pass_s(1)
        await process.identities.follow_once()
        assert process.knows(new.text) is None
        assert process.tenants.policy(8).disabled
        with pytest.raises(DatabaseUnavailable):
            await process.auth.authenticate_slowly(f"Bearer {new.text}")
        broken.broken = False
        assert await process.auth.authenticate_slowly(f"Bearer {new.text}")
        assert new.text not in caplog.text

    run(lose())
    assert "no longer accepted" in caplog.text


def test_following_goes_on_whatever_the_database_does(database, times):
    class Enough(Exception):
        pass

    broken, waits = Broken(database), []

    async def sleep(seconds):
        waits.append(seconds)
        broken.broken = len(waits) % 2 == 0
        if len(waits) == 6:
            raise Enough

    directory = IdentityCache(broken, TokenTable(), times.clock, sleep)
    with pytest.raises(Enough):
        run(directory.follow())
    assert len(database.reads) == 3


def test_an_error_in_a_read_ends_neither_following_nor_the_time_limit(database, times, caplog):
    process = Process(database, times)

    async def lose():
        new = await process.tokens.create(process.all, "ann", {7})
        await process.identities.follow_once()
        process.identities._database = None
        times.pass_s(STALE_S + 1)
        await process.identities.follow_once()
        assert process.knows(new.text) is None
        process.identities._database = database
        await process.identities.follow_once()
        assert process.knows(new.text)

    run(lose())
    assert "AttributeError" in caplog.text


def test_a_restored_older_database_is_accepted(here, tmp_path, times):
    database = DatabaseExecutor(open_database(sqlite_url(tmp_path / "other" / "service.db")))
    other = Process(database, times)
    kept = run(other.tokens.create(other.all, "kept", {7}))
    gone = [run(here.tokens.create(here.all, "gone", {7})) for _ in range(3)]
    run(here.identities.follow_once())
    here.identities._database = database
    run(here.identities.follow_once())
    assert here.knows(kept.text)
    assert not any(here.knows(each.text) for each in gone)
    database.close_now()


def test_tokens_that_ended_long_ago_are_removed(here):
    async def tidy():
        new = await here.tokens.create(here.all, "ann", {7}, expires_unix_ms=1_000_001)
        here.times.pass_s(1 + KEEP_DEAD_MS / 1000)
        assert len(here.table) == 1
        for _ in range(TIDY_ROUNDS):
            await here.identities.follow_once()
        assert len(here.table) == 0
        with pytest.raises(NotFound):
            await here.tokens.get(here.all, new.record.id)

    run(tidy())


# ---------------------------------------------------------------- tenants


def test_a_tenant_without_a_record_has_the_default_policy(here):
    assert here.tenants.policy(MAX_TENANT) == TenantPolicy(quotas=USUAL)
    record = run(here.tenants.get(here.all, 5))
    assert (record.tenant, record.weight, dict(record.quotas), record.disabled, record.created_unix_ms) == (
        5,
        1,
        {},
        False,
        0,
    )
    assert run(here.tenants.list(here.all)) == []


def test_a_change_of_a_tenant_applies_at_once(here):
    change = TenantChange("ann", 3, {"requests": 2, "qps": 5})
    record = run(here.tenants.create(here.all, 7, change))
    assert here.tenants.policy(7) == TenantPolicy(3, USUAL | {"requests": 2, "qps": 5})
    assert run(here.tenants.get(here.all, 7)) == record
    run(here.tenants.update(here.all, 7, TenantChange(quotas={"requests": None, "burst": 9})))
    assert here.tenants.policy(7) == TenantPolicy(3, USUAL | {"qps": 5, "burst": 9})
    with pytest.raises(TypeError):
        here.tenants.policy(7).quotas["qps"] = 1
    with pytest.raises(Conflict):
        run(here.tenants.create(here.all, 7, change))


def test_a_disabled_tenant_is_refused_and_comes_back(here):
    run(here.tenants.disable(here.all, 7))
    admission = Admission(None, here.identities, RateLimiter(Buckets()), Quotas(), None)
    with pytest.raises(TenantScopeDenied, match="disabled"):
        admission.admit_tenant(7)
    run(here.tenants.update(here.all, 7, TenantChange(disabled=False)))
    assert admission.admit_tenant(7).tenant == 7


def test_a_disabled_tenant_cannot_enable_itself(here):
    run(here.tenants.disable(here.all, 7))
    with pytest.raises(TenantScopeDenied):
        here.admit(frozenset({7}))
    capability = here.admit(frozenset({7, 8}))
    assert not run(here.tenants.update(capability, 7, TenantChange(disabled=False))).disabled


def test_the_last_enabled_tenant_of_a_token_cannot_be_disabled(here):
    alone, both = here.admit(frozenset({7})), here.admit(frozenset({7, 8}))
    for ask in (here.tenants.disable(alone, 7), here.tenants.update(alone, 7, TenantChange(disabled=True))):
        with pytest.raises(TenantScopeDenied, match="last tenant"):
            run(ask)
    with pytest.raises(TenantScopeDenied, match="last tenant"):
        run(here.tenants.create(alone, 7, TenantChange(disabled=True)))
    assert not here.tenants.policy(7).disabled
    assert run(here.tenants.disable(both, 8)).disabled
    with pytest.raises(TenantScopeDenied, match="last tenant"):
        run(here.tenants.disable(both, 7))
    assert run(here.tenants.disable(here.all, 7)).disabled


@pytest.mark.parametrize(
    "change",
    [
        TenantChange(weight=0),
        TenantChange(weight=1001),
        TenantChange(quotas={"cookies": 1}),
        TenantChange(quotas={"qps": -1}),
        TenantChange(quotas={"qps": 1 << 63}),
    ],
    ids=str,
)
def test_invalid_changes_of_tenants_are_refused(here, change):
    for ask in (here.tenants.create, here.tenants.update):
        with pytest.raises(InvalidRequest):
            run(ask(here.all, 7, change))
    with pytest.raises(InvalidName):
        run(here.tenants.update(here.all, 7, TenantChange("a\x00")))
    assert run(here.tenants.list(here.all)) == []


def test_every_quota_can_be_set(here):
    quotas = dict.fromkeys(CAPS, 0)
    assert run(here.tenants.update(here.all, 7, TenantChange(quotas=quotas))).quotas == quotas


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(tenant_sets)
def test_only_covered_tenants_can_be_read_or_changed(here, tenants):
    capability = here.admit(tenants)
    for tenant in (0, 7, MAX_TENANT):
        run(here.tenants.update(here.all, tenant, TenantChange(weight=1)))
        if tenants is None or tenant in tenants:
            assert run(here.tenants.get(capability, tenant)).tenant == tenant
            continue
        before = len(here.database.reads), len(here.database.batches)
        for ask in (
            here.tenants.get(capability, tenant),
            here.tenants.create(capability, tenant, TenantChange()),
            here.tenants.update(capability, tenant, TenantChange(weight=9)),
            here.tenants.disable(capability, tenant),
        ):
            with pytest.raises(TenantScopeDenied):
                run(ask)
        assert (len(here.database.reads), len(here.database.batches)) == before  # nothing was looked up
    listed = {each.tenant for each in run(here.tenants.list(capability))}
    assert listed == {0, 7, MAX_TENANT} & (listed | {0, 7, MAX_TENANT} if tenants is None else tenants)


# ---------------------------------------------------------------- opening


@asynccontextmanager
async def opened(url, **variables):
    database = DatabaseExecutor(open_database(url))
    try:
        yield await open_identity(ServiceSettings.from_environment(variables), database)
    finally:
        await database.close()


def opening(url, **variables):
    async def open_it():
        async with opened(url, **variables) as identity:
            first = identity.first_token and identity.first_token.text
            try:
                return first, identity.authenticator.authenticate(None)
            except Unauthorized:
                return first, None

    return run(open_it())


LIST = {"TENSOR_WASM_API_TOKENS": f"{LISTED}:tenant=7"}
DEV = {"TENSOR_WASM_API_ALLOW_DEV_MODE": "1"}


@pytest.mark.rule("14-exposure")
def test_without_tokens_the_first_is_made_and_required(url):
    first, anybody = opening(url)
    assert first
    assert anybody is None
    assert opening(url) == (None, None)


def test_with_a_list_of_tokens_no_first_one_is_made(url):
    assert opening(url, **LIST) == (None, None)
    assert opening(url)[0]


@pytest.mark.rule("14-exposure")
def test_dev_mode_accepts_requests_only_without_any_token(url):
    first, anybody = opening(url, **DEV)
    assert (first, anybody.kind) == (None, "dev")
    assert opening(url, **DEV, **LIST) == (None, None)
    assert opening(url)[0]
    assert opening(url, **DEV) == (None, None)


@pytest.mark.parametrize(
    "variables",
    [
        {"TENSOR_WASM_API_TOKENS": "changeme"},
        {"TENSOR_WASM_API_KERNEL_PUBLISH_TOKENS": "changeme"},
        {"TENSOR_WASM_API_OIDC_ISSUER": "http://issuer.example"},
    ],
)
def test_invalid_settings_are_errors_at_the_start(url, variables):
    with pytest.raises(InvalidArgs, match=next(iter(variables)).rpartition("_")[0]):
        opening(url, **variables)


@pytest.mark.rule("14-hashed")
def test_no_log_error_or_database_file_contains_a_token(url, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)

    async def live():
        async with opened(url, **LIST) as identity:
            capability = identity.tenants.admit(Principal("bearer", "a", None, frozenset(SCOPES)))
            new = await identity.tokens.create(capability, "ann", {7}, USER_SCOPES)
            newer = await identity.tokens.rotate(capability, new.record.id)
            shown = [repr(identity), repr(new), repr(newer), repr(await identity.tokens.list(capability))]
            for ask in (identity.tokens.rotate(capability, new.record.id), identity.tokens.get(capability, new.text)):
                with pytest.raises((Conflict, NotFound)) as caught:
                    await ask
                shown.append(repr(caught.value))
            return [new.text, newer.text], "".join(shown)

    texts, shown = run(live())
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for text in (*texts, LISTED):
        secret = text.partition("_")[2] or text  # the secret may have more of them
        assert len(secret) > 8
        assert secret not in shown + caplog.text
        assert secret.encode() not in kept
