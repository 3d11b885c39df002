"""Windows at and around what 32 bits hold, in the flash kernels for Hopper: the same as windows that hide the same."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash import backward as flash_backward
from attnbench.kernels.flash import forward as flash_forward
from attnbench.kernels.flash import problem as flash_problem
from attnbench.kernels.flash.config import backward as flash_backward_configs
from attnbench.kernels.flash.config import forward as flash_configs
from attnbench.kernels.flash.hopper import backward as flash_hopper_backward
from attnbench.kernels.flash.hopper import forward as flash_hopper_forward

from .hopper_machine import machine_runs


@pytest.mark.parametrize(
    ("window", "forward", "dim"),
    [
        ((2**31 - 1, 2**31 - 1), "m128n64w8s2-tma-pp", 64),
        ((-1, 2**31 - 1), "m192n64w12s2-tma-ws-few", 64),
        ((2**32 + 3, 2), "m128n64w8s2-tma-ws-ticket", 256),
    ],
)
def test_flash_for_hopper_is_right_for_windows_of_any_size(window, forward, dim):
    torch.manual_seed(0)
    q, dout = (torch.randn(2, 70, 2, dim, dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.randn(2, 130, 1, dim, dtype=torch.bfloat16) for _ in range(2))

    tiles = "128x128" if dim == 64 else "64x64"

    def run(window):
        problem = flash_problem.problem_of(q, k, v, window=window)
        out = torch.full_like(q, torch.nan)
        lse = torch.full(flash_problem.lse_shape(q, problem), torch.nan)
        grads = [torch.full_like(x, torch.nan) for x in (q, k, v)]
        backward = flash_backward_configs.parse_backward(f"b{tiles}w8s2-atomic-tma-ws")
        with machine_runs(flash_hopper_forward, "flash_hopper_forward", seed=0):
            flash_forward.launch_forward(q, k, v, out, lse, problem, flash_configs.parse(forward))
        with ExitStack() as stack:
            stack.enter_context(machine_runs(flash_backward, "flash_backward_prepare", "flash_backward_round"))
            for name in ("flash_hopper_backward", "flash_hopper_backward_wide"):
                stack.enter_context(machine_runs(flash_hopper_backward, name, seed=0))
            flash_backward.launch_backward(
                q, k, v, out, dout, lse, *grads, problem, backward, flash_backward.workspace_of(q, problem, backward)
            )
        return out, lse, *grads

    near = tuple(min(bound, 200) for bound in window)
    assert all(torch.equal(x, y) for x, y in zip(run(window), run(near), strict=True))
