"""Arguments of kernels: how many names a signature has, and that a number in a tuple is specialised as one by itself."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .aot import NO_OLDEST, OLDEST

KERNELS = Path(__file__).resolve().parents[2] / "src" / "attnbench" / "kernels"
MOST = 25
LONGER = {
    "flash_backward_columns": 26,
    "hstu_bsa_grad_keys": 27,
    "hstu_bsa_ticket": 27,
    "hstu_bsa_hopper_attend": 40,
    "quantise": 41,
    "flash_hopper_forward": 36,
    "flash_sparse_quant_hopper_forward": 33,
    "flash_sparse_quant_forward": 31,
    "decode_attend": 40,
    "attend_part": 35,
    "flash_sparse_hopper_forward": 33,
    "flash_quant_hopper_forward": 33,
    "hstu_hopper_forward": 32,
    "flash_quant_forward": 31,
    "hstu_paged_hopper_forward": 30,
    "hstu_bsa_hopper_select": 30,
    "decode_combine": 30,
    "fold_rows": 27,
    "flash_sparse_forward": 27,
    "hstu_hopper_backward_wide": 26,
    "hstu_hopper_backward": 26,
}
"""Functions with more names than MOST, and how many; pointers, descriptors and numbers that nothing is compiled anew for
cannot be in a tuple: a descriptor's map is made of an argument by itself, and Triton specialises every number of one."""


def test_signatures_have_few_names():
    found = {}
    for path in sorted(KERNELS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(one) for one in node.decorator_list):
                found[node.name] = max(found.get(node.name, 0), len(node.args.args))
    assert len(found) > 100
    assert {name: count for name, count in found.items() if count > MOST} == LONGER


BINDER = """
import json
from typing import NamedTuple
import torch, triton, triton.language as tl
from triton.backends.compiler import GPUTarget

class Strides(NamedTuple):
    q: tuple
    k: tuple

class Meta(NamedTuple):
    BLOCK: int
    ORDER: str

class Driver:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)
    def get_current_device(self):
        return 0

triton.runtime.driver.set_active(Driver())

@triton.jit(do_not_specialize=("rows",))
def together(x_ptr, strides, scales, rows, META: tl.constexpr):
    pass

@triton.jit(do_not_specialize=("rows",))
def apart(x_ptr, q_row, q_head, k_row, k_head, one, two, rows, BLOCK: tl.constexpr, ORDER: tl.constexpr):
    pass

def bound(kernel, *values):
    *_, binder = kernel.create_binder()
    return binder(*values, debug=False)[1]

def leaves(kind, value):
    if isinstance(kind, tuple):
        return [leaf for pair in zip(kind, value) for leaf in leaves(*pair)]
    return [[kind, one] for one in value] if kind == "constexpr" and isinstance(value, tuple) else [[kind, value]]

def flat(specialised):
    return [leaf for one in specialised for leaf in leaves(*one)]

x = torch.zeros(4)
found = []
for strides in ((1, 16, 3, 0), (5, 1, 32, 2**33), (64, 48, 2, 1)):
    q, k = strides[:2], strides[2:]
    both = (
        bound(together, x, Strides(q, k), (0.5, 1.0), 1, Meta(64, "ws")),
        bound(apart, x, *strides, 0.5, 1.0, 1, 64, "ws"),
    )
    found.append([flat(one) for one in both])
print(json.dumps({"version": triton.__version__, "found": found}))
"""


@pytest.mark.parametrize("folder", [None, OLDEST], ids=["pinned", "3.6"])
def test_triton_specialises_numbers_in_nested_tuples_as_it_does_single_ones(tmp_path, folder):
    """What is 1, what 16 divides, what needs 64 bits: of each Triton, in a process of its own."""
    pytest.importorskip("triton")
    if folder is not None and not (folder / ".ready").is_file():
        pytest.skip(NO_OLDEST)
    script = tmp_path / "binder.py"  # Triton reads the source of a kernel
    script.write_text(BINDER, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | ({} if folder is None else {"PYTHONPATH": str(folder)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert said["version"].startswith("3.6") is (folder is not None)
    for together, apart in said["found"]:
        assert together == apart
        assert len(together) == 10
