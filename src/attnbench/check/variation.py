"""Data that no launch has seen, derived in place from known data so that the answer is known.

`Workload.signs` names the tensors whose last dimension may change sign.  Queries and keys change sign in the same
drawn dimensions, so every score keeps its bits.  Values and the gradient of the output change sign in other
dimensions, and so do the outputs.  Sums run over the same magnitudes in the same order, so a right launch is exactly
as accurate as before.  The oracle is not computed again: outputs are multiplied by their signs and compared with the
known answer.

The signs come from the operating system's entropy, not from `--seed`: a backend must not be able to prepare
for them, and they affect no recorded sample.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnbench.check.poison import bits

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.base import Case, Inputs, Workload


class Variation:
    """Signs for one set of inputs.

    Args:
        workload: of the case.
        case: the problem.
        inputs: written in place by `apply`; nothing else may rely on their values meanwhile.
    """

    def __init__(self, workload: Workload, case: Case, inputs: Inputs) -> None:
        import torch

        self.names = workload.signs(case)
        self._inputs = {name: tensor for name, tensor in inputs.tensors().items() if name in self.names}
        self._generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(7)))
        self._applied = False
        self._used: dict[str, set[bytes]] = {}
        "signs drawn before, by the name of their vector: a launch may have kept its answer to them"
        self._signs = self._drawn()

    def apply(self) -> None:
        """Change the inputs in place; only queues work on a GPU."""
        self._flip()
        self._applied = True

    def undo(self) -> None:
        """Restore the inputs, bit for bit; after `renew` the next `apply` uses other signs."""
        if self._applied:
            self._flip()
            self._applied = False

    def renew(self) -> None:
        """Draw other signs.

        Separate from `undo`, because outputs of the last signs may still have to be read.
        """
        self._signs = self._drawn()

    def unsigned(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies of the outputs of a launch on changed inputs, as they would be on the unchanged ones."""
        copies = {name: tensor.detach().clone() for name, tensor in outputs.items()}
        for name, tensor in copies.items():
            if name in self.names and tensor.is_floating_point():
                _flip_signs(tensor, self._signs[self.names[name]])
        return copies

    def _flip(self) -> None:
        for name, tensor in self._inputs.items():
            # Through .data: the version counter of the tensor would tell a backend that the data has changed.
            _flip_signs(tensor.data, self._signs[self.names[name]])

    def _drawn(self) -> dict[str, Tensor]:
        signs = {}
        for name, tensor in self._inputs.items():
            vector = self.names[name]
            if vector not in signs:
                signs[vector] = self._unused(vector, tensor.shape[-1]).to(tensor.device)
        return signs

    def _unused(self, vector: str, size: int) -> Tensor:
        """Signs, int8 [size], that were not drawn before, as long as there are such: eight dimensions have 255."""
        import torch

        known = bytes([1] * size)  # all ones would be the data as it was
        used = self._used.setdefault(vector, {known})
        if size < 16 and len(used) == 2**size:
            used.intersection_update({known})
        while True:
            drawn = torch.randint(0, 2, (size,), generator=self._generator, dtype=torch.int8) * 2 - 1
            key = drawn.numpy().tobytes()
            if key not in used or not size:
                used.add(key)
                return drawn


def _flip_signs(tensor: Tensor, signs: Tensor) -> None:
    """Multiply a tensor by ±1 along its last dimension, in place and exactly.

    Args:
        tensor: floating, or int8 and wider without the lowest value of its range.
        signs: int8 [last dimension], 1 or -1.
    """
    import torch

    if not tensor.is_floating_point():
        tensor.mul_(signs.to(tensor.dtype))
        return
    # The sign is the highest bit of every floating format; torch cannot multiply 8-bit ones.
    whole = bits(tensor)
    whole.bitwise_xor_((signs < 0).to(whole.dtype) * torch.iinfo(whole.dtype).min)
