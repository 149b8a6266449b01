"""Where nouns meet: load a module, invoke it."""

from tensorwasm.runtime.function import Function
from tensorwasm.runtime.grants import Grants, parse_grants
from tensorwasm.runtime.invocation import Invocation
from tensorwasm.runtime.runtime import Runtime

__all__ = ["Function", "Grants", "Invocation", "Runtime", "parse_grants"]
