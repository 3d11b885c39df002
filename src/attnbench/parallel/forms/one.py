"""``one``: everything on one device, as the reference for scaling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attnbench.parallel.attend import Sequences, attend
from attnbench.parallel.deal import Rows
from attnbench.parallel.form import Group, ParallelForm
from attnbench.parallel.problem import Problem


class Form(ParallelForm):
    """No exchange."""

    title = "one device"

    def __init__(self, problem: Problem, group: Group) -> None:
        super().__init__(problem, group)
        self.of = Sequences(problem.lengths, device=group.device)

    def rows(self) -> list[Rows]:
        """All rows."""
        return [(0, self.problem.total)]

    def run(self) -> None:
        """Compute attention."""
        self.out, _ = attend(self.q, self.k, self.v, self.of, self.problem, causal=self.problem.causal)

    def phases(self) -> Mapping[str, Callable[[], Any]]:
        """Attention only."""
        return {"attention": self.run}
