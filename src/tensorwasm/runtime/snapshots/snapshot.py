"""`Snapshot`: a saved instance, verified and made ready, from which any number of instances are restored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakKeyDictionary

from tensorwasm import settings
from tensorwasm.errors import InvalidSnapshot
from tensorwasm.guest.engine import memory_creator
from tensorwasm.guest.engine.module import INITIALISE
from tensorwasm.guest.memory.images import Image, make_image
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.oneshot import SavedStart
from tensorwasm.guest.saved import transfer
from tensorwasm.guest.saved.transfer import RestorePlan
from tensorwasm.runtime.invoke.deployed_module import DeployedModule
from tensorwasm.runtime.invoke.dispatch import NO_GRANTS, Question, plan_one_shot
from tensorwasm.runtime.invoke.grants import Grants, parse_grants
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.invoke.one_shot import OneShotPlan
from tensorwasm.runtime.snapshots.live import Ancestor, InstanceOptions, LiveInstance, RestoreSource
from tensorwasm.saved import SavedInstance, SavedMemory
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.runtime.snapshots.live import RestoreOptions

_MAX_PLANS: Final = 256

_pristine: WeakKeyDictionary[DeployedModule, SavedInstance] = WeakKeyDictionary()


class Snapshot:
    """An instance's state between two calls. Immutable; any thread may restore from it. Close it when done."""

    def __init__(self, saved: SavedInstance, image: Image | None, content_hash: bytes = b"") -> None:
        self.saved = saved  # all of it but the contents of its memory, which are in the image
        self.image = image  # of its memory, None without one
        self.content_hash = content_hash  # of the file that it came from, else empty
        self._plans: WeakKeyDictionary[DeployedModule, RestorePlan] = WeakKeyDictionary()
        self._one_shots: dict[tuple[DeployedModule, str | None, str], OneShotPlan] = {}
        self._lock = threading.Lock()

    @property
    def ancestor(self) -> Ancestor:
        """The state that later ones are compared with, to save only what changed since."""
        return Ancestor(self.content_hash, self.image, self.saved.session)

    @property
    def held_bytes(self) -> int:
        """Memory that it takes: its image, and the data of the device's buffers."""
        buffers = self.saved.session.buffers if self.saved.session is not None else ()
        held_bytes = self.image.held_bytes if self.image is not None else 0
        return held_bytes + sum(len(run.data) for buffer in buffers for run in buffer.runs)

    def opening(
        self,
        grants: Iterable[str] | Grants,
        tenant: str,
        deadline: Deadline | None,
        options: RestoreOptions,
        data: bytes | None = None,
    ) -> InstanceOptions:
        """Return the options of an instance that goes on, with those of the caller's grants that the saved one had too.

        Its input is `data`, for None what was saved. Raises `InvalidArgs` if there is no such grant.
        """
        granted = parse_grants(grants)
        if granted.cuda or granted.directories:
            granted = granted.within(parse_grants(self.saved.grants))
        return InstanceOptions(
            granted, tenant, self.saved.input if data is None else data, deadline=deadline, **options
        )

    def restore(self, function: DeployedModule, opening: InstanceOptions) -> LiveInstance:
        """Return an instance that goes on where the saved one was. Costs the same at any size of its memory.

        Raises `InvalidSnapshot`, `ModuleMemoryTooLarge`, and what `tensorwasm.runtime.Function.open` raises.
        """
        plan = self._plans.get(function) or self._plan(function)
        return LiveInstance(function, opening, RestoreSource(plan, self.image, self.saved.session))

    def invoke(
        self,
        function: DeployedModule,
        export: str | None,
        args: Sequence[object],
        opening: InstanceOptions,
        on_chunk: Callable[[bytes], bool] | None = None,
    ) -> Invocation:
        """Restore, call once and close, at less cost than one after the other; raise what these raise.

        The deadline of the options is that of the call, their input what the call reads.
        """
        found = self._one_shots.get((function, export, opening.tenant)) if not opening.granted.cuda else None
        if found is None or found.settings is not settings.current():
            found = self._find_one_shot(function, export, opening)
        if found is not None:
            return found.invoke(args, opening.input, on_chunk, opening.deadline)
        with self.restore(function, opening) as live:
            return live.call(export, args, deadline=opening.deadline, on_chunk=on_chunk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory. Idempotent; restored instances are not affected."""
        self._one_shots.clear()
        if self.image is not None:
            self.image.close()

    def _find_one_shot(
        self, function: DeployedModule, export: str | None, opening: InstanceOptions
    ) -> OneShotPlan | None:
        """Return the plan of one-shot calls, None where they must be full: more than memory and globals is saved."""
        if opening.granted.cuda:
            return None
        plan = self._plans.get(function) or self._plan(function)
        prepared, limits = function.form(function.blank), function.host.limits
        if (
            function.blank.copied  # there is no image to begin with
            or (plan.pointers or plan.tables or plan.drops or plan.size_bytes > limits.memory_bytes)
            or (export == INITIALISE and prepared.module.is_reactor)  # which the saved state has behind it
        ):
            return None
        saved = SavedStart(self.image, plan.bits, opening.tenant)
        found = plan_one_shot(Question(function, function.choose(export), NO_GRANTS, "", "staged", saved))
        if found is not None:
            if len(self._one_shots) >= _MAX_PLANS:
                self._one_shots.clear()
            self._one_shots[function, export, opening.tenant] = found
        return found

    def _plan(self, function: DeployedModule) -> RestorePlan:
        if self.saved.module_hash != function.module_hash:
            raise InvalidSnapshot("the snapshot is of another module")
        blank = function.form(function.blank).module.preamble
        with self._lock:
            plan = transfer.make_plan(self.saved, function.instrumented, blank, _find_pristine(function))
            self._plans[function] = plan
        return plan


def make_snapshot(saved: SavedInstance, content_hash: bytes = b"") -> Snapshot:
    """Copy the whole saved state of an instance, so that it can be restored from.

    Raises `InvalidSnapshot` if it contradicts itself, or only adds to a parent.
    """
    if saved.parent is not None:
        raise InvalidSnapshot("the snapshot only adds to another one: flatten them first")
    if len(saved.memories) > 1:
        raise InvalidSnapshot("an instance has at most one memory")
    image = make_image(saved.memories[0].size_bytes, saved.memories[0].runs) if saved.memories else None
    sizes = tuple(SavedMemory(memory.size_bytes, ()) for memory in saved.memories)
    return Snapshot(replace(saved, memories=sizes), image, content_hash)


def _find_pristine(function: DeployedModule) -> SavedInstance:
    """Return the contents of a new sandbox of a function's blank form."""
    found = _pristine.get(function)
    if found is None:
        prepared, limits = function.form(function.blank), function.host.limits
        image = make_image(prepared.module.preamble.memory_bytes, ())
        try:
            with (
                memory_creator.supplying(lambda _size, _capacity: image.map(), limits.memory_bytes),
                Instance(prepared, limits=limits, deadline=Deadline.after(limits.wall_s)) as instance,
            ):
                found = _pristine[function] = transfer.read_pristine(instance, function.instrumented)
        finally:
            image.close()
    return found
