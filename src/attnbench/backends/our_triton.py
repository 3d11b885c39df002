"""What the adapters of our own kernels share: Triton is asked for, and configurations are those of the family."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Backend, Config, Machine, module_exists
from attnbench.errors import Unavailable, Unsupported, UsageError, refusal
from attnbench.workloads.base import CaseT, InputsT

if TYPE_CHECKING:
    from attnbench.kernels.shared.family import Family, Misnamed

HOPPER = (9, 0)
"Compute capability whose configurations are listed where no card is known."


def require_triton(backend: Backend) -> None:
    """Refuse where Triton is not installed.

    Raises:
        Unavailable: in one line that says how to get it.
    """
    if not module_exists("triton"):
        raise Unavailable(f"{backend.name}: module=triton is not installed; {backend.install} for a GPU")


class OurTriton(Backend[CaseT, InputsT]):
    """Kernels of our own; `module` stays None, which says that no library of others is measured."""

    install = "part of torch"
    distribution = "triton"
    compiles = ahead = True

    @abstractmethod
    def family(self) -> Family[Any]:
        """Names of the kernels' launch configurations."""

    @abstractmethod
    def shape(self, case: CaseT, capability: tuple[int, int]) -> Any:
        """What the configurations depend on, of a case and a card."""

    @property
    def own(self) -> str:
        """The name of the launch configuration; empty for the default."""
        return self.config.short if self.config else ""

    def probe(self) -> None:
        """Ask for Triton, which torch for a GPU brings.

        Raises:
            Unavailable: it is not installed.
        """
        require_triton(self)

    def check(self, case: CaseT, machine: Machine) -> None:
        """Refuse what the kernels do not take, and a configuration this card cannot run.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        from attnbench.kernels.shared.family import Misnamed

        super().check(case, machine)
        if self.own and machine.capability is not None:
            try:
                self.family().check(self.own, self.shape(case, machine.capability), case.mode)
            except Misnamed as why:
                raise Unsupported(self._refusal(why)) from None

    def configs(self, case: CaseT) -> Iterable[Config]:
        """The forward's configurations, in a mode with a backward the backward's, for an H100 or H200."""
        there = self.family().space(self.shape(case, HOPPER), case.mode)
        return [Config(short, values) for short, values in there.items()]

    def default_of(self, case: CaseT) -> Config | None:
        """The tuned default, for an H100 or H200; None of a case that the kernels do not take."""
        short = self.family().default(self.shape(case, HOPPER), case.mode)
        return self.config_of(short, case) if short else None

    def config_of(self, short: str, case: CaseT) -> Config:
        """Any valid configuration, in `configs` or not.

        Raises:
            UsageError: it cannot be read or is not valid; what is wrong, and the nearest valid one.
        """
        from attnbench.kernels.shared.family import Misnamed

        try:
            return Config(short, self.family().read(short, self.shape(case, HOPPER), case.mode))
        except Misnamed as why:
            raise UsageError(self._refusal(why)) from None

    def _refusal(self, why: Misnamed) -> str:
        todo = f"the nearest valid one is {why.near}" if why.near else ""
        return refusal(self.name, "config", why.text, why.wrong, why.accepted, todo)
