"""``dense[NAME]``: any backend of dense attention on the queries, keys and values of a sparse case.

It ignores the map.  It is what a map's speed is compared with, in the same interleaved group: speed-up over dense,
times density, is the efficiency E.  Without a name it is ``sdpa-flash``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Backend, Budget, Config, Launch, Machine
from attnbench.backends.registry import all_backends
from attnbench.workloads.sparse.case import SparseCase

if TYPE_CHECKING:
    from attnbench.workloads.sparse.inputs import SparseInputs

DEFAULT = "sdpa-flash"


class DenseReference(Backend[SparseCase, "SparseInputs"]):
    """The call is the other backend's own."""

    name = "dense"
    workload = "sparse"
    variant = "dense"
    title = "Dense attention, the map ignored"
    install = "that of the backend in brackets"
    devices = ("cpu", "cuda")
    tested = "NVIDIA H200, torch 2.11"
    compiles = True
    wraps = "attention"
    default = DEFAULT

    @property
    def inner(self) -> Backend[Any, Any]:
        """Whose attention it is."""
        return all_backends()[self.config.short if self.config else DEFAULT]

    def configs(self, case: SparseCase) -> Iterable[Config]:
        """Every backend of the workload `attention`."""
        return [Config(name) for name, one in all_backends().items() if one.workload == "attention"]

    def probe(self) -> None:
        """Ask for the backend's library.

        Raises:
            Unavailable: it is not installed.
        """
        self.inner.probe()

    def version(self) -> str | None:
        """Of the backend's library."""
        return self.inner.version()

    def check(self, case: SparseCase, machine: Machine) -> None:
        """Refuse what the backend does not take.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        self.inner.check(case.dense, machine)

    def budget(self, case: SparseCase) -> Budget:
        """That of the backend."""
        return self.inner.budget(case.dense)

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """A session of the backend."""
        with self.inner.session(case.dense, inputs.dense) as launch:
            load = launch.reload
            yield replace(launch, reload=lambda fresh: load(fresh.dense))
