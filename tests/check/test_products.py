"""The detection of compute operators in a call, and its requirements."""

from __future__ import annotations

import subprocess
import sys

import torch

from attnbench.check.products import products

ALONE = """
import sys
import torch
from attnbench.check.products import products
from attnbench.workloads.noise import Noise
from attnbench.workloads.rounding import Format
with products() as names:
    torch.ones(2, 3) @ torch.ones(3, 2)
assert names == {"mm"}, names
with Noise(Format.of(torch.bfloat16), torch.device("cpu")):
    moved = torch.ones(2, 3, dtype=torch.float64) + 1
assert not torch.equal(moved, torch.full((2, 3), 2.0, dtype=torch.float64))
assert "torch._dynamo" not in sys.modules
"""


def test_products_and_attention_are_seen_and_copies_are_not():
    x = torch.ones(1, 1, 4, 8)
    with products() as names:
        x.transpose(2, 3).contiguous().half().copy_(x.transpose(2, 3)).mul_(2)
    assert names == set()
    with products() as names:
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
    assert names
    with products() as names:
        (x @ x.transpose(2, 3)).softmax(-1)
    assert {name.strip("_") for name in names} == {"bmm", "softmax"}


def test_they_are_seen_where_a_compiler_is_loaded_too():
    import torch._dynamo

    with products() as names:
        torch.ones(2, 3) @ torch.ones(3, 2)
    assert names == {"mm"}


def test_the_compiler_is_not_loaded_to_look():
    """Half of what a worker on a CPU took to start; nor where an oracle's operations are given errors."""
    subprocess.run([sys.executable, "-c", ALONE], check=True)
