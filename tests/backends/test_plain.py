"""A function in a file is a kernel: right, wrong, without a mask, in both layouts."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from attnbench.backends.base import Machine
from attnbench.backends.registry import all_backends
from attnbench.errors import Unsupported, UsageError, WorkerError
from attnbench.workloads.base import load_workload

TORCH = """
import torch

def attention(q, k, v, causal, scale):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
"""
HEADS_LAST = """
layout = "bshd"

def attention(q, k, v, scale, causal=False):
    import torch

    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
"""
PLAIN = "def attention(q, k, v):\n    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v\n"
PARTIAL = """
import functools

import torch


def attend(dropout, q, k, v, causal, scale):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, None, dropout, causal, scale=scale)


attention = functools.partial(attend, 0.0)
"""
MODULE = """
import torch


class Attention(torch.nn.Module):
    def forward(self, q, k, v, causal, scale):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)


attention = Attention()
"""
WINDOWED = "def attention(q, k, v, *, window=None, **more):\n    assert not more\n    return v\n"
WORKLOAD = load_workload("attention")


def backend(folder, text, name="mine.py"):
    path = folder / name
    path.write_text(text)
    return all_backends([str(path)])[path.stem]


def case(**values):
    return WORKLOAD.case({"batch": 2, "seqlen": 5, "nheads": 2, "headdim": 4, "dtype": "fp32", **values})


@pytest.mark.parametrize("text", [TORCH, HEADS_LAST, PLAIN, PARTIAL, MODULE])
@pytest.mark.parametrize("causal", [False, True])
def test_it_computes_forward_and_gradients(tmp_path, text, causal):
    import torch

    from attnbench.workloads.base import Draw

    one, shape = backend(tmp_path, text), case(causal=causal, mode="fwd-bwd")
    if text == PLAIN and causal:
        with pytest.raises(Unsupported, match=r"mine: causal=True is not an argument of attention; def attention\("):
            one.check(shape, Machine("cpu"))
        return
    one.check(shape, Machine("cpu"))
    inputs = WORKLOAD.inputs(shape, seed=0, kind="normal", device="cpu")
    truth = WORKLOAD.oracle("softmax", shape, inputs, dtype=torch.float64, draw=Draw())
    with one.session(shape, inputs) as launch:
        launch.forward()
        launch.backward()
        found = launch.outputs()
    assert set(found) == set(truth) == {"out", "dq", "dk", "dv"}
    for name, tensor in truth.items():
        torch.testing.assert_close(found[name].double(), tensor, atol=1e-5, rtol=1e-4)


def test_what_it_is_called_and_takes(tmp_path):
    one, other = backend(tmp_path, PLAIN, "old.py"), backend(tmp_path, WINDOWED, "new.py")
    assert (one.name, one.title, one.devices, one.workload) == (
        "old",
        "attention of old.py",
        ("cpu", "cuda"),
        "attention",
    )
    other.check(case(window=(2, 0)), Machine("cpu"))
    with pytest.raises(Unsupported, match=r"old: window=\(2, 0\) is not supported"):
        one.check(case(window=(2, 0)), Machine("cpu"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def attention(q, k, v, mask): ...", r"has attention\(q, k, v, mask\), which wants mask; def attention\("),
        ("def attention(x): ...", r"has attention\(x\), which does not begin with q, k, v; "),
        ("def attention(q, v, k): ...", r"which does not begin with q, k, v; "),
        ("layout = 'sbhd'\ndef attention(q, k, v): ...", r"has layout='sbhd'; one of bhsd, bshd: the order of "),
        ("def attend(q, k, v, causal, scale): ...", r"holds no backend; a function `def attention\(q, k, v, c"),
        ("attention = 3", "holds no backend; a function `def attention"),
        ("class attention: ...", "holds no backend; a function `def attention"),
        ("async def attention(q, k, v): ...", r"has attention, whose calls do not compute: .*; def attention\("),
        ("def attention(q, k, v): yield v", r"has attention, whose calls do not compute: .*; def attention\("),
        ("attention = max", r"has attention, which does not say what it takes; def attention\("),
    ],
)
def test_what_is_no_kernel_is_refused_with_the_signature(tmp_path, text, words):
    with pytest.raises(UsageError, match=words) as refused:
        backend(tmp_path, text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["my kernel.py", "all.py", "a,b.py", "re\x1b[31md.py"])
def test_a_file_that_names_no_backend_is_to_be_renamed(tmp_path, name):
    with pytest.raises(
        UsageError, match=r"\.py names no backend: attention is called after its file; .*; rename"
    ) as no:
        backend(tmp_path, PLAIN, name)
    assert "\x1b" not in str(no.value)
    assert "Plain" not in str(no.value)


def test_a_module_beside_the_file_is_answered_with_the_variable_that_finds_it(tmp_path):
    (tmp_path / "beside.py").write_text("SCALE = 1\n")
    with pytest.raises(
        UsageError, match=rf"line 1: .*'beside'; .*; beside beside it is found by PYTHONPATH={tmp_path}$"
    ):
        backend(tmp_path, f"from beside import SCALE\n{PLAIN}")
    with pytest.raises(
        UsageError, match=r"No module named 'nowhere'; a Python file with a function attention, or a Backend$"
    ):
        backend(tmp_path, f"import nowhere\n{PLAIN}")


def test_a_process_of_the_kernel_s_own_can_import_its_functions(tmp_path):
    one = backend(tmp_path, f"def double(x):\n    return 2 * x\n{PLAIN}", "pool.of.two.py")
    double = sys.modules[one.function.__module__].double
    call = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(21))"
    said = subprocess.run(
        [sys.executable, "-c", call], input=pickle.dumps(double), capture_output=True, check=True, cwd=tmp_path
    )
    assert said.stdout.split() == [b"42"]


@pytest.mark.parametrize(("returned", "words"), [("v, None", "tuple"), ("v.detach().numpy()", "ndarray")])
@pytest.mark.parametrize("mode", ["fwd", "fwd-bwd"])
def test_what_returns_no_tensor_is_told_so(tmp_path, returned, words, mode):
    one, shape = backend(tmp_path, f"def attention(q, k, v):\n    return {returned}\n"), case(mode=mode)
    inputs = WORKLOAD.inputs(shape, seed=0, kind="normal", device="cpu")
    with one.session(shape, inputs) as launch:
        launch.forward()
        for read in [launch.outputs, *([launch.backward] if mode != "fwd" else [])]:
            with pytest.raises(WorkerError, match=f"launch: forward returned type={words}; a tensor, the output alone"):
                read()


def test_it_is_measured_in_a_worker(tmp_path):
    import attnbench

    for name, text in (("old.py", TORCH), ("new.py", TORCH.replace("return", "return 2 *"))):
        (tmp_path / name).write_text(text)
    found = attnbench.run(
        "minimal",
        device="cpu",
        backends="sdpa",
        files=[tmp_path / "old.py", tmp_path / "new.py"],
        axes={"seqlen": 16, "batch": 1},
        warmup=1,
        iterations=2,
    )
    assert {record.backend: record.status.value for record in found.run.records} == {
        "sdpa": "passed",
        "old": "passed",
        "new": "incorrect",
    }
