"""Base class of our kernels' sessions: own copies of the inputs, and calls in the right order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnbench.errors import WorkerError

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.base import Inputs


class Buffers(ABC):
    """The closures of a `Launch` whose calls do not use autograd.

    The copies in `own` belong to the session: reloading it does not change the inputs, which all sessions of a group
    share.  A backward uses the last forward, and there are no outputs before one.
    """

    def __init__(self, inputs: Inputs) -> None:
        self.own: dict[str, Tensor] = {name: x.detach().clone() for name, x in inputs.tensors().items()}
        self.ran = self.ran_back = False

    @abstractmethod
    def run_forward(self) -> None:
        """Compute the outputs from `own`."""

    @abstractmethod
    def run_backward(self) -> None:
        """Compute the gradients from `own` and the last forward."""

    @abstractmethod
    def results(self) -> Mapping[str, Tensor]:
        """Tensors that the forward writes."""

    @abstractmethod
    def gradients(self) -> Mapping[str, Tensor]:
        """Tensors that the backward writes."""

    def forward(self) -> None:
        """Call the forward."""
        self.run_forward()
        self.ran = True

    def backward(self) -> None:
        """Call the backward.

        Raises:
            WorkerError: no forward was called since the last reload.
        """
        if not self.ran:
            raise WorkerError("launch: backward was called before forward")
        self.run_backward()
        self.ran_back = True

    def outputs(self) -> dict[str, Tensor]:
        """Return the results of the last calls.

        Raises:
            WorkerError: no forward was called since the last reload.
        """
        if not self.ran:
            raise WorkerError("launch: outputs were asked for before forward")
        return {**self.results(), **(self.gradients() if self.ran_back else {})}

    def load(self, inputs: Inputs) -> None:
        """Copy in new values of the same shapes."""
        self.ran = self.ran_back = False
        for name, x in inputs.tensors().items():
            self.own[name].copy_(x)
