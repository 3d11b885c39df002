"""Global memory that programs share: the accesses to it, and whether something orders them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from . import language
from .mistakes import Race, Unsupported
from .schedule import Schedule, Task
from .tiles import Pointer, Tile

ORDERS = {"acquire": (True, False), "release": (False, True), "acq_rel": (True, True), "relaxed": (False, False)}
"By memory order: whether an atomic acquires, and whether it releases."


@dataclass
class _Storage:
    """A tensor's storage: for each element the last event of each kind and task; 0: none."""

    size: int
    events: dict[tuple[str, Task], torch.Tensor] = field(default_factory=dict)
    released: dict[int, int] = field(default_factory=dict)
    "by address, the accesses that were released there"

    def of(self, kind: str, task: Task) -> torch.Tensor:
        return self.events.setdefault((kind, task), torch.zeros(self.size, dtype=torch.int64))


class Watched:
    """Accesses to global memory by pointers of programs that run at the same time; bulk copies are not recorded."""

    def __init__(self) -> None:
        self.storages: dict[int, _Storage] = {}

    def of(self, pointer: Pointer) -> _Storage:
        at = pointer.flat.untyped_storage().data_ptr()
        return self.storages.setdefault(at, _Storage(len(pointer.flat)))


class Outside:
    """Stand-ins for loads, stores and atomics of one program.

    Args:
        schedule: of the program.
        watched: None: programs run one after the other, and nothing is recorded.
    """

    def __init__(self, schedule: Schedule, watched: Watched | None) -> None:
        self.schedule, self.watched = schedule, watched

    def load(
        self, pointer: Pointer, mask: Any = None, other: Any = None, *, volatile: bool = False, **hints: Any
    ) -> Any:
        """`load`; a volatile one is relaxed, and may poll a counter."""
        if self.watched is None:
            return language.load(pointer, mask, other)
        at, wanted = pointer.places(mask)
        if volatile:
            self._poll("load", pointer, at[wanted])
        else:
            self.schedule.pause()
            self.read(pointer, at[wanted], "load")
        return language.load(pointer, mask, other)

    def store(self, pointer: Pointer, value: Any, mask: Any = None, **hints: Any) -> None:
        if self.watched is not None:
            self.schedule.pause()
            at, wanted = pointer.places(mask)
            self._touch(pointer, at[wanted], "store", "write", ("read", "write", "atomic"))
        language.store(pointer, value, mask)

    def atomic_add(
        self, pointer: Pointer, val: Any, mask: Any = None, sem: str | None = None, scope: str | None = None
    ) -> Any:
        """`atomic_add`; one of 0 may poll a counter."""
        if self.watched is None:
            return language.atomic_add(pointer, val, mask, sem, scope)
        if scope not in (None, "gpu"):
            raise Unsupported(f"an atomic of scope {scope}")
        at, wanted = pointer.places(mask)
        places = at[wanted]
        if bool(torch.as_tensor(val.value if isinstance(val, Tile) else val).any()):
            self.schedule.pause()
        else:
            self._poll("atomic", pointer, places)
        self._touch(pointer, places, "atomic", "atomic", ("read", "write"))
        acquires, releases = ORDERS[sem or "acq_rel"]
        released, task = self.watched.of(pointer).released, self.schedule.task
        for place in places.flatten().tolist():
            if acquires:
                task.known |= released.get(place, 0)
            if releases:
                released[place] = released.get(place, 0) | task.known
        return language.atomic_add(pointer, val, mask)

    def read(self, pointer: Pointer, places: torch.Tensor, what: str) -> None:
        """Record a read by the running task."""
        if self.watched is not None:
            self._touch(pointer, places, what, "read", ("write", "atomic"))

    def _poll(self, what: str, pointer: Pointer, places: torch.Tensor) -> None:
        """Let others run; a task that reads the same values again, with nothing done in between, waits for a change."""
        task, flat = self.schedule.task, pointer.flat
        places = places.flatten()
        looks = (what, flat.data_ptr(), places.tolist())
        seen = flat[places].tolist()
        again = task.polled == (looks, seen)
        self.schedule.pause(
            (lambda: flat[places].tolist() != seen) if again else None,
            lambda: f"global memory to change at {places.tolist()}, where it is {seen}",
        )
        task.polled = (looks, flat[places].tolist())

    def _touch(self, pointer: Pointer, places: torch.Tensor, what: str, kind: str, after: tuple[str, ...]) -> None:
        """Record an access, and require that accesses of the kinds `after` by other tasks are known to be complete."""
        task, storage = self.schedule.task, self.watched.of(pointer)
        for (other, who), events in storage.events.items():
            if who is not task and other in after:
                for number in events[places].unique().tolist():
                    if number and not task.known >> number & 1:
                        raise Race(
                            f"{task.name}: {what} of global memory, and nothing puts it behind the {other} "
                            f"there by {who.name}"
                        )
        bit = self.schedule.event()
        storage.of(kind, task)[places] = bit.bit_length() - 1
        task.known |= bit
