"""Base class of the adapters of our own kernels: requires Triton, and reads configurations of the kernel family."""

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
"Compute capability whose configurations are listed if no card is known."


def require_triton(backend: Backend) -> None:
    """Raise if Triton is not installed.

    Raises:
        Unavailable: with the command that installs it.
    """
    if not module_exists("triton"):
        raise Unavailable(f"{backend.name}: module=triton is not installed; {backend.install} for a GPU")


class OurTriton(Backend[CaseT, InputsT]):
    """Kernels of our own; `module` stays None, because no third-party library is measured."""

    install = "part of torch"
    distribution = "triton"
    compiles = ahead = True

    @abstractmethod
    def family(self) -> Family[Any]:
        """Family of the kernels' launch configurations."""

    @abstractmethod
    def shape(self, case: CaseT, capability: tuple[int, int]) -> Any:
        """Return what the configurations depend on, for a case and a card."""

    @property
    def own(self) -> str:
        """The name of the launch configuration; empty for the default."""
        return self.config.short if self.config else ""

    def probe(self) -> None:
        """Check that Triton is installed; GPU builds of torch include it.

        Raises:
            Unavailable: it is not installed.
        """
        require_triton(self)

    def check(self, case: CaseT, machine: Machine) -> None:
        """Refuse cases that the kernels do not support, and configurations that this card cannot run.

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
        """Return the forward's configurations, and in a mode with a backward the backward's, for an H100 or H200."""
        there = self.family().space(self.shape(case, HOPPER), case.mode)
        return [Config(short, values) for short, values in there.items()]

    def default_of(self, case: CaseT) -> Config | None:
        """Return the tuned default for an H100 or H200; None for a case that the kernels do not support."""
        short = self.family().default(self.shape(case, HOPPER), case.mode)
        return self.config_of(short, case) if short else None

    def config_of(self, short: str, case: CaseT) -> Config:
        """Return any valid configuration, in `configs` or not.

        Raises:
            UsageError: it cannot be parsed or is not valid; the message names the nearest valid one.
        """
        from attnbench.kernels.shared.family import Misnamed

        try:
            return Config(short, self.family().read(short, self.shape(case, HOPPER), case.mode))
        except Misnamed as why:
            raise UsageError(self._refusal(why)) from None

    def _refusal(self, why: Misnamed) -> str:
        todo = f"the nearest valid one is {why.near}" if why.near else ""
        return refusal(self.name, "config", why.text, why.wrong, why.accepted, todo)
