"""Arguments of kernels: how many names a signature has, and that what is in a named tuple is as if it were by itself."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("triton")

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.kernels.shared import kept
from attnbench.kernels.shared.hopper import aggregate

from .aot import NO_OLDEST, OLDEST, compile_with, recorded, tritons
from .hopper_machine import Mistake, run
from .interpreter import interpreted
from .launches import on_no_card

KERNELS = Path(__file__).resolve().parents[2] / "src" / "attnbench" / "kernels"
MOST = 25
"""Names of a signature, at most.  Descriptors and numbers that nothing is compiled anew for cannot be in a tuple: a
descriptor's map is made of an argument by itself, and Triton specialises every number of one."""


def test_signatures_have_few_names():
    found = {}
    for path in sorted(KERNELS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(one) for one in node.decorator_list):
                found[node.name] = max(found.get(node.name, 0), len(node.args.args))
    assert len(found) > 100
    assert not {name: count for name, count in found.items() if count > MOST}


def test_launchers_give_arguments_by_name():
    """All but the kernel and the grid of `kept.launch`, all of ``kernel[grid](...)``."""
    found, launches = [], 0
    for path in sorted(KERNELS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or path.parent.name == "shared":
                continue
            ours = isinstance(node.func, ast.Name) and node.func.id == "launch"
            triton_s = isinstance(node.func, ast.Subscript) and isinstance(node.func.slice, ast.Tuple)
            launches += ours or triton_s
            if (ours or triton_s) and len(node.args) > 2 * ours:
                found.append(f"{path.name}:{node.lineno}")
    assert launches > 30
    assert not found


BY_PLACE = 7
"""Arguments that a call of ours gives by place, at most: of more the reader would have to count."""


def test_calls_of_many_arguments_give_them_by_name():
    """Of functions, named tuples and aggregates of the kernels; not of operators, whose order is their schema."""
    there = {path.relative_to(KERNELS).as_posix(): path for path in sorted(KERNELS.rglob("*.py"))}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in there.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.args.vararg is None}
    ours = functions | {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    found, calls = [], 0
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                if name in ours and len(node.args) + len(node.keywords) > BY_PLACE:
                    calls += 1
                    by_place = [one for one in node.args if not isinstance(one, ast.Starred)]
                    if len(by_place) > BY_PLACE:
                        found.append(f"{path}:{node.lineno} {name}")
    assert calls > 200
    assert not found


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
    assert said["version"] == (triton.__version__ if folder is None else "3.6.0")
    for together, apart in said["found"]:
        assert together == apart
        assert len(together) == 10


# ── tensors in named tuples ────────────────────────────────────────────────────────────────────────

SOURCE = """
from typing import NamedTuple
import triton
import triton.language as tl


class Operand(NamedTuple):
    ptr: object
    strides: tuple


class Operands(NamedTuple):
    x: Operand
    y: Operand
    missing: object


class Meta(NamedTuple):
    SIZE: int


class Row(NamedTuple):
    ptr: object
    stride: object


@triton.jit
def load(row, SIZE: tl.constexpr):
    return tl.load(row.ptr + tl.arange(0, SIZE) * row.stride)


@triton.jit(do_not_specialize=("row",))
def together(operands, row, META: tl.constexpr):
    x, y = operands.x, operands.y
    value = load(Row(stride=x.strides[1], ptr=x.ptr + row * x.strides[0]), META.SIZE)
    if operands.missing is None:
        value += 1
    tl.store(y.ptr + row * y.strides[0] + tl.arange(0, META.SIZE) * y.strides[1], value)


@triton.jit(do_not_specialize=("row",))
def apart(x_ptr, x_row, x_column, y_ptr, y_row, y_column, missing, row, SIZE: tl.constexpr):
    value = tl.load(x_ptr + row * x_row + tl.arange(0, SIZE) * x_column)
    if missing is None:
        value += 1
    tl.store(y_ptr + row * y_row + tl.arange(0, SIZE) * y_column, value)
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A folder with a module `named_tuples`."""
    (tmp_path / "named_tuples.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield tmp_path
    sys.modules.pop("named_tuples", None)


def launch(module: Any, x: torch.Tensor, y: torch.Tensor, row: int) -> None:
    operands = module.Operands(module.Operand(x, x.stride()), module.Operand(y, y.stride()), None)
    module.together[(1,)](operands, row, module.Meta(32))


def test_a_tensor_in_a_named_tuple_is_compiled_as_one_by_itself(written):
    module = importlib.import_module("named_tuples")
    x, y = torch.empty(6, 32, device="meta"), torch.empty(32, 6, dtype=torch.float16, device="meta").T
    with recorded(module, "together", "apart", capability=90) as jobs:
        launch(module, x, y, 5)
        module.apart[(1,)](x, *x.stride(), y, *y.stride(), None, 5, 32)
    assert jobs[0].arguments["operands"] == {
        "x": {"ptr": "*fp32:16", "strides": ["i32:16", None]},
        "y": {"ptr": "*fp16:16", "strides": [None, "i32"]},
        "missing": None,
    }
    for found in compile_with(tritons(), jobs).values():
        one, other = (astuple(found[job.label]) for job in jobs)
        assert one == other


def test_a_tensor_in_a_named_tuple_is_interpreted(written):
    x, y = torch.randn(6, 32), torch.zeros(6, 32)
    with interpreted("named_tuples") as (module,):
        launch(module, x, y, 5)
    assert torch.equal(y[5], x[5] + 1)
    assert (y[:5] == 0).all()


class Operand(NamedTuple):
    ptr: Any
    stride: Any


class Operands(NamedTuple):
    x: Operand
    y: Operand


class Meta(NamedTuple):
    SIZE: int


@aggregate
class Lanes:
    SIZE: gl.constexpr


@gluon.jit
def in_gluon(operands, META: gl.constexpr):
    lanes = gl.arange(0, Lanes(SIZE=META.SIZE).SIZE, gl.BlockedLayout([1], [32], [4], [0]))
    x = Operand(stride=1, ptr=operands.x.ptr + operands.x.stride)
    gl.store(operands.y.ptr + lanes * operands.y.stride, gl.load(x.ptr + lanes) * META.SIZE)


@gluon.jit
def no_constant(operands, META: gl.constexpr):
    Lanes(SIZE=operands.x.stride)


def test_a_tensor_in_a_named_tuple_is_known_to_the_machine():
    x, y = torch.randn(3, 8), torch.zeros(8, 2)
    run(in_gluon, (1,), Operands(Operand(x, 8), Operand(y, 2)), Meta(8))
    assert torch.equal(y[:, 0], x[1] * 8)
    assert (y[:, 1] == 0).all()
    with pytest.raises(Mistake, match=r"Lanes\.SIZE is a constexpr"):
        run(no_constant, (1,), Operands(Operand(x, 8), Operand(y, 2)), Meta(8))


def test_a_field_of_meta_is_a_constant_of_an_aggregate():
    x = torch.empty(128, device="meta")
    module = sys.modules[__name__]
    with recorded(module, "in_gluon", "no_constant", capability=90) as jobs:
        for kernel in (module.in_gluon, module.no_constant):
            kernel[(1,)](Operands(Operand(x, 8), Operand(x, 2)), Meta(128))
    made, refused = jobs
    assert all(made.label in found for found in compile_with(tritons(), [made]).values())
    with pytest.raises(RuntimeError, match=r"Expected .*constexpr.* for attribute 'SIZE'"):
        compile_with({"pinned": None}, [refused])


@triton.jit(do_not_specialize=("count",))
def named(operands, out_ptr, count):
    """Launched on no card."""


def test_a_launch_with_tensors_in_named_tuples_is_repeated():
    def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        out, room = kept.empty((4, 8), x), kept.empty((2, 8), x)
        operands = Operands(Operand(x, x.stride()), Operand((room, y), 3))
        kept.launch(named, (2,), operands, out, kept.rows_in(x))
        return (out,)

    with on_no_card() as card:
        launches = kept.Launches(work)
        for count in (4, 5):
            x, y = torch.zeros(count, 8), torch.zeros(4, 8)
            (out,) = launches(x, y)
            assert launches.fault is None
            _, grid, (((x_at, strides), ((room_at, y_at), stride)), out_at, rows) = card.launched[-1]
            assert (grid, strides, stride, rows) == ((2, 1, 1), (8, 1), 3, count)
            assert (x_at, y_at, out_at) == (x.data_ptr(), y.data_ptr(), out.data_ptr())
            assert room_at not in (x_at, y_at, out_at)
            assert room_at in {made.data_ptr() for made in card.held}
        assert card.through_triton == 1


def test_what_cannot_be_in_a_tuple_is_not_repeated():
    def work(x: torch.Tensor) -> tuple[()]:
        kept.launch(named, (2,), Operand(x, object()), None, 1)
        return ()

    with on_no_card():
        launches = kept.Launches(work)
        launches(torch.zeros(4, 8))
        assert launches.fault == "an argument is of type object"
