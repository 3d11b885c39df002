"""``dense[NAME]``: any backend of dense attention on the queries, keys and values of a sparse case.

It ignores the map.  The speed of a map is compared with it in the same interleaved group: speed-up over dense times
density is the efficiency E.  Without a name it is ``sdpa-flash``.
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
    """Its call is the other backend's own call."""

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
        """The backend whose attention is used."""
        return all_backends()[self.config.short if self.config else DEFAULT]

    def configs(self, case: SparseCase) -> Iterable[Config]:
        """Return every backend of the workload `attention`."""
        return [Config(name) for name, one in all_backends().items() if one.workload == "attention"]

    def probe(self) -> None:
        """Check that the backend's library is installed.

        Raises:
            Unavailable: it is not installed.
        """
        self.inner.probe()

    def version(self) -> str | None:
        """Version of the backend's library."""
        return self.inner.version()

    def check(self, case: SparseCase, machine: Machine) -> None:
        """Refuse cases that the backend does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        self.inner.check(case.dense, machine)

    def budget(self, case: SparseCase) -> Budget:
        """Return the budget of the backend; with a grid, a video has another share of text than the dense case's."""
        budget = self.inner.budget(case.dense)
        return budget if case.grid is None else replace(budget, by_input={})

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Open a session of the backend."""
        with self.inner.session(case.dense, inputs.dense) as launch:
            load = launch.reload
            yield replace(launch, reload=lambda fresh: load(fresh.dense))
