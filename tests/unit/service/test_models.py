"""Which function a model is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from tensorwasm.errors import InvalidArgs, ModelNotFound, NotFound
from tensorwasm.service.functions.models import KEPT, KEPT_S, ModelNames, parse_map


class FakeFunctions:
    """Functions by id: tenant, name, whether it is a model, aliases; the later of one name is the newer."""

    def __init__(self, **functions):
        self.functions = functions
        self.asked = 0

    def _record(self, identity):
        tenant, name, *_ = self.functions[identity]
        return SimpleNamespace(id=identity, tenant=tenant, name=name)

    async def resolve(self, tenant, reference):
        self.asked += 1
        head, _, alias = reference.rpartition("@")
        for function, which in ((reference, ""), (head, alias)):
            identity = self._find(tenant, function)
            if identity is None:
                continue
            owner, _, model, *aliases = self.functions[identity]
            if owner != tenant:
                raise NotFound("another's")
            if which and which not in aliases:
                raise NotFound("none")
            options = SimpleNamespace(model=model)
            return SimpleNamespace(reference=reference, record=self._record(identity), options=options)
        raise NotFound("none")

    def _find(self, tenant, function):
        if function in self.functions:
            return function
        named = [each for each, (owner, name, *_) in self.functions.items() if (owner, name) == (tenant, function)]
        return named[-1] if named else None

    async def newest(self, tenant, limit):
        found = [each for each, (owner, *_) in self.functions.items() if owner == tenant]
        return [(self._record(each), SimpleNamespace(model=self.functions[each][2])) for each in reversed(found)]


FUNCTIONS = {
    "f1": (1, "llm", True, "live"),
    "f2": (1, "llm", True),
    "f3": (1, "odd@name", True),
    "f4": (1, "none", False),
    "f5": (1, "given", False, "live"),
    "g1": (2, "llm", True),
    "g2": (2, "hidden", True),
}


def find(model, tenant=1, mapped=None):
    return asyncio.run(ModelNames(FakeFunctions(**FUNCTIONS), mapped or {}).find(tenant, model))


@pytest.mark.parametrize(
    ("model", "tenant", "expected"),
    [
        ("llm", 1, "llm"),
        ("llm", 2, "llm"),
        ("f1", 1, "f1"),
        ("f1@live", 1, "f1@live"),
        ("odd@name", 1, "odd@name"),
        ("mapped", 1, "f5"),
        ("mapped@live", 1, "f5@live"),
        ("short", 1, "f1@live"),
        ("shared", 2, "g2"),
        ("gpt:4", 1, "f2"),
    ],
)
def test_a_model_is_an_operator_s_name_or_a_function_deployed_as_a_model(model, tenant, expected):
    assert find(model, tenant, {"short": "f1@live", "shared": "g2", "gpt:4": "f2", "mapped": "f5"}) == expected


@pytest.mark.parametrize(
    "model",
    [
        "",
        "@",
        "@live",
        "hidden",
        "g1",
        "shared",
        "none",
        "f4",
        "given",
        "given@live",
        "llm@live",
        "llm@none",
        "f2@live",
        "LLM",
        "x" * 10_000,
    ],
)
def test_models_of_other_tenants_are_not_found(model):
    with pytest.raises(ModelNotFound) as raised:
        find(model, 1, {"shared": "g2"})
    assert len(raised.value.message) < 200


def test_an_operator_s_name_of_another_tenant_s_function_falls_back_to_one_s_own():
    assert find("llm", 1, {"llm": "g1"}) == "llm"


def test_a_name_is_cached_for_a_time():
    async def story():
        now_s, functions = [0.0], FakeFunctions(**FUNCTIONS)
        models = ModelNames(functions, {}, lambda: now_s[0])
        for _ in range(3):
            assert await models.find(1, "llm") == "llm"
        assert functions.asked == 1
        now_s[0] = KEPT_S
        assert models.known(1, "llm") is None
        assert await models.find(1, "llm") == "llm"
        assert functions.asked == 2
        models.forget(1, "llm")
        assert models.known(1, "llm") is None
        assert models.known(2, "llm") is None

    asyncio.run(story())


def test_the_cache_of_names_is_bounded():
    async def story():
        functions = FakeFunctions(**{f"f{at}": (1, f"n{at}", True) for at in range(KEPT + 5)})
        models = ModelNames(functions, {})
        for at in range(KEPT + 5):
            await models.find(1, f"f{at}")
        assert len(models._cached) == KEPT

    asyncio.run(story())


def test_a_tenants_models_are_listed_once_each():
    async def story():
        models = ModelNames(FakeFunctions(**FUNCTIONS), {"short": "f1@live", "shared": "g2"})
        assert {name: record.id for name, record in (await models.list(1)).items()} == {
            "short": "f1",
            "odd@name": "f3",
            "llm": "f2",
        }
        assert (await models.get(1, "llm")).id == "f2"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", {}), ("a:1", {"a": "1"}), (" a:1 , b:c:2@x,", {"a": "1", "b:c": "2@x"})],
)
def test_the_map_is_parsed(text, expected):
    assert parse_map(text) == expected


@pytest.mark.parametrize("text", ["a", ":1", "a:", "a:1,a:2"])
def test_an_invalid_map_is_refused(text):
    with pytest.raises(InvalidArgs):
        parse_map(text)
