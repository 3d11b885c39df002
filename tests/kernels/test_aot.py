"""The ahead-of-time compiler of these tests sees what it is to see, with every supported Triton."""

from __future__ import annotations

import pytest

from .aot import NO_OLDEST, Job, compile_with, recorded, tritons
from .machine_code import early_arrivals

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def square(x_ptr, y_ptr, rows, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    where = at[:, None] * SIZE + at[None, :]
    x = tl.load(x_ptr + where, mask=at[:, None] < rows, other=0.0)
    tl.store(y_ptr + where, tl.dot(x, x), mask=at[:, None] < rows)


@triton.jit(do_not_specialize=("rows",))
def any_rows(x_ptr, rows):
    tl.store(x_ptr, rows)


@triton.jit
def crowded(x_ptr, y_ptr, rows, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    kept = tl.load(x_ptr + at)
    total = tl.load(y_ptr + at)
    for row in range(rows):
        total = tl.sqrt(total + tl.load(x_ptr + row * SIZE + at)) * kept
    tl.store(y_ptr + at, total)
"""

IN_GLUON = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait


@gluon.jit
def write(y_ptr, x, REPEATS: gl.constexpr):
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    total = gl.zeros([64, 64], gl.float32, LAYOUT)
    for _ in gl.static_range(REPEATS):
        total = warpgroup_mma(x, x.permute([1, 0]), total, is_async=True)
    total = warpgroup_mma_wait(0, [total])
    rows = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))[:, None]
    gl.store(y_ptr + rows * 64 + gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))[None, :], total)


@gluon.jit
def idle(x):
    pass


@gluon.jit
def square(x_desc, y_ptr, missing, SHAPE: gl.constexpr, REPEATS: gl.constexpr):
    x = gl.allocate_shared_memory(x_desc.dtype, SHAPE, x_desc.layout)
    if missing is None:
        x.store(gl.full(SHAPE, 1.0, x_desc.dtype, gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])))
    fence_async_shared()
    gl.warp_specialize([(write, (y_ptr, x, REPEATS)), (idle, (x,))], [4], [24])
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("aot")
    (folder / "aot_kernels.py").write_text(SOURCE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        jobs = [
            Job(
                f"square-{card}",
                "aot_kernels:square",
                {"x_ptr": "*fp16:16", "y_ptr": "*fp32:16", "rows": "i32"},
                {"SIZE": 64},
                card,
            )
            for card in (80, 90, 100)
        ]
        jobs.append(
            Job(
                "crowded",
                "aot_kernels:crowded",
                {"x_ptr": "*fp32", "y_ptr": "*fp32", "rows": "i32"},
                {"SIZE": 8192},
                90,
                num_warps=4,
                options={"maxnreg": 64},
            )
        )
        return compile_with(tritons(), jobs)


@pytest.mark.parametrize("version", ["pinned", "3.6"])
@pytest.mark.parametrize(("card", "product"), [(80, "HMMA"), (90, "HGMMA"), (100, "UTCHMMA")])
def test_a_product_is_the_tensor_cores_of_its_card(found, version, card, product):
    if version not in found:
        pytest.skip(NO_OLDEST)
    one = found[version][f"square-{card}"]
    assert one.sass[product] == one.tensor_core > 0
    assert one.spills == 0
    assert 0 < one.registers <= 255
    assert one.shared > 0
    assert one.warps == 4


def in_gluon(folder, monkeypatch):
    """Jobs of a kernel in Gluon, of one product and of two."""
    import importlib

    import torch
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    (folder / "aot_in_gluon.py").write_text(IN_GLUON, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    module = importlib.import_module("aot_in_gluon")
    x = torch.empty(64, 64, dtype=torch.bfloat16)
    layout = NVMMASharedLayout.get_default_for([64, 64], module.gl.bfloat16)
    descriptor = TensorDescriptor.from_tensor(x, [64, 64], layout)
    with recorded(module, "square", capability=90) as jobs:
        for repeats in (1, 2):
            module.square[(1,)](descriptor, x.float(), None, SHAPE=(64, 64), REPEATS=repeats)
    return jobs


@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_a_kernel_in_gluon_is_a_job_like_any_other(tmp_path, monkeypatch, version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    one, two = in_gluon(tmp_path, monkeypatch)
    assert one.arguments["x_desc"].startswith("tensordesc<bf16[64,64],NVMMASharedLayout(")
    found = compile_with({version: tritons()[version]}, [one, two])[version]
    assert found[one.label].sass["HGMMA"] * 2 == found[two.label].sass["HGMMA"] == 8
    assert found[one.label].warps == 8
    # Two products into the same sums follow one another without a wait.
    assert not found[two.label].serialized
    assert found[two.label].waits == 1


@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_spills_are_seen(found, version):
    if version not in found:
        pytest.skip(NO_OLDEST)
    assert found[version]["crowded"].spills > 0
    assert found[version]["crowded"].tensor_core == 0


def test_a_job_names_every_argument_of_its_kernel(tmp_path, monkeypatch):
    (tmp_path / "aot_kernels.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="differ in rows"):
        compile_with(
            {"pinned": None}, [Job("one", "aot_kernels:square", {"x_ptr": "*fp16", "y_ptr": "*fp32"}, {"SIZE": 64}, 90)]
        )


def test_a_compiler_that_dies_is_replaced_and_what_is_printed_is_no_answer(tmp_path, monkeypatch):
    words = "import os, sys\nprint('{}')\nsys.stderr.write('no such chip')\nsys.stderr.flush()\n"
    (tmp_path / "aot_fatal.py").write_text(words + "os.abort()\n", encoding="utf-8")
    (tmp_path / "aot_empty.py").write_text(words, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    jobs = [Job("one", f"{module}:square", {}, {}, 90) for module in ("aot_empty", "aot_fatal", "aot_empty")]
    for job, said in zip(
        jobs, ("has no attribute 'square'", "ended with -6: (?s:.*)no such chip", "'square'"), strict=True
    ):
        with pytest.raises(RuntimeError, match=said):
            compile_with({"of its own": tmp_path}, [job])


def test_a_launch_is_noted_as_the_launcher_would_compile_it(tmp_path, monkeypatch):
    import importlib

    import torch

    (tmp_path / "aot_kernels.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("aot_kernels")
    x = torch.empty(64, 64, dtype=torch.float16, device="meta")
    kernel = module.square
    with recorded(module, "square", capability=90) as jobs:
        module.square[(1,)](x, x, 48, SIZE=64, num_warps=8, num_stages=2, maxnreg=128)
        module.square[(1,)](x, None, 1, SIZE=64)
    with recorded(module, "any_rows", capability=90) as unseen:
        module.any_rows[(1,)](x, 1)
        module.any_rows[(1,)](x, 48)
    assert [job.arguments for job in unseen] == [{"x_ptr": "*fp16:16", "rows": "i32"}] * 2
    assert module.square is kernel
    assert jobs == [
        Job(
            "square 0",
            "aot_kernels:square",
            {"x_ptr": "*fp16:16", "y_ptr": "*fp16:16", "rows": "i32:16"},
            {"SIZE": 64},
            90,
            8,
            2,
            {"maxnreg": 128},
        ),
        Job("square 1", "aot_kernels:square", {"x_ptr": "*fp16:16"}, {"y_ptr": None, "rows": 1, "SIZE": 64}, 90),
    ]


def test_an_arrival_is_early_where_warps_may_still_read():
    read, meet = "ld.shared.b32 %r2, [%r3];", "bar.sync 2, 128;"
    arrive = "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1];"
    lines = [read, meet, arrive, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64;"]
    assert early_arrivals("\n".join(lines)) == 0
    assert early_arrivals("\n".join([meet, read, arrive])) == 1
    assert early_arrivals("\n".join([read, arrive])) == 1
    assert early_arrivals("\n".join([meet, "$L__BB0_2:", arrive])) == 1  # who jumps there has not met
