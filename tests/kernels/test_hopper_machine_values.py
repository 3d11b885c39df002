"""The Hopper machine's values: tensor maps, arithmetic, what a kernel may not depend on."""

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from attnbench.kernels.shared.hopper import add_tile, coordinates, load_tile, rows_of, store_tile
from attnbench.kernels.shared.rows import section_of

from .hopper_machine import Mistake, OutOfBounds, Unsupported, run

SIDE = gl.constexpr(64)


# ── tensor maps ────────────────────────────────────────────────────────────────────────────────────


@gluon.jit
def move(from_desc, to_desc, start, rows, first, head, there, ADD: gl.constexpr):
    """Rows [first, first + 64) of one sequence to rows `first` of one that begins at `there`."""
    tile = gl.allocate_shared_memory(from_desc.dtype, from_desc.block_shape, from_desc.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, from_desc.block_type.nbytes)
    load_tile(from_desc, coordinates(start, rows, first, head), bar, tile)
    mbarrier.wait(bar, 0)
    if ADD:
        add_tile(to_desc, coordinates(there, rows, first, head), tile)
    else:
        store_tile(to_desc, coordinates(there, rows, first, head), tile)
    tma.store_wait(0)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(
    ("start", "rows", "first"), [(0, 300, 0), (7, 63, 0), (100, 129, 128), (40, 65, 64), (3, 1, 0)]
)
def test_rows_of_a_sequence_end_where_it_does(start, rows, first, add):
    torch.manual_seed(0)
    x = torch.randn(310, 2, 16)
    y = torch.randn(320, 2, 16)
    want = y.clone()
    taken = x[start + first : start + min(first + 64, rows), 1]
    there = want[5 + first : 5 + first + len(taken), 1]
    there.copy_(there + taken if add else taken)
    run(move, (1,), rows_of(x, 64, 16), rows_of(y, 64, 16), start, rows, first, 1, 5, add)
    assert torch.equal(y, want)


def test_a_box_outside_the_storage_is_an_error():
    x, y = torch.randn(310, 2, 16), torch.zeros(320, 2, 16)
    with pytest.raises(OutOfBounds, match="of a storage of 9920"):
        run(move, (1,), rows_of(x, 64, 16), rows_of(y, 64, 16), 300, 64, 0, 1, 0, False)


def test_a_tile_of_another_shape_is_an_error():
    x, y = torch.randn(310, 2, 16), torch.zeros(320, 2, 16)
    with pytest.raises(Mistake, match="bulk store: tile has"):
        run(move, (1,), rows_of(x, 64, 16), rows_of(y, 32, 16), 0, 64, 0, 1, 0, False)


# ── numbers, pointers, names ───────────────────────────────────────────────────────────────────────


# Layouts are left out below: nobody compiles this one.
@gluon.jit
def arithmetic(numbers_ptr, floats_ptr, n, scale, ODD: gl.constexpr):
    number = 7
    if ODD == "negative":
        number = (number - n) // 2
    if ODD == "below zero":
        down = 0
        down -= 1
        number = down // 2
    if ODD == "negative tile":
        gl.store(numbers_ptr + gl.arange(0, 8), (gl.arange(0, 8) - 4) % 3)
    if ODD == "wide":
        number = n * 2000000000
    if ODD == "asm":
        gl.inline_asm_elementwise("", "=r,r", [number], dtype=gl.int32, is_pure=True, pack=1)
    if ODD == "missing":
        gl.histogram(gl.arange(0, 8), 8)
    if ODD == "pointer":
        gl.store(numbers_ptr + gl.arange(0, 16), 0, mask=gl.arange(0, 16) < 9)
    if ODD == "constant":
        takes_constant(numbers_ptr, n)
    if ODD == "index":
        gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout()).index(n)
    lanes = gl.arange(0, 8)
    gl.store(numbers_ptr + lanes, gl.where(lanes < number, lanes * n + number // 2, -1))
    values = lanes.to(gl.float32) * scale
    worst = gl.max(gl.where(lanes == 3, float("nan"), values), 0)
    total = gl.sum(values, 0) + gl.exp2(3.0)
    gl.store(floats_ptr, worst)
    gl.store(floats_ptr + 1, total)
    gl.store(floats_ptr + 2, gl.maximum(worst, total) / gl.minimum(4, n))
    twice = gl.broadcast(values[:, None], gl.zeros([8, 2], gl.float32))[0]
    values = twice.permute([1, 0]).reshape([16]).reshape([2, 8]).max(0)
    low, high = gl.join(values, gl.fma(values, values, 1.0)).split()
    gl.store(floats_ptr + 3, gl.sum(high - low, 0))
    thirds = gl.cast(lanes.to(gl.float32) / 3, gl.bfloat16)
    gl.store(floats_ptr + 4, gl.sum(thirds, 0), mask=gl.program_id(0) == 0)
    gl.atomic_add(floats_ptr + 5 + lanes * 0, values)
    gl.store(floats_ptr + 6, gl.load(numbers_ptr + 1) + gl.load(floats_ptr + 100, mask=False, other=0.5))


@gluon.jit
def takes_constant(numbers_ptr, N: gl.constexpr):
    gl.store(numbers_ptr, N)


def test_numbers_are_those_of_a_kernel():
    numbers, floats = torch.zeros(8, dtype=torch.int32), torch.zeros(7)
    run(arithmetic, (1,), numbers, floats, 10, 0.1, "")
    assert numbers.tolist() == [3, 13, 23, 33, 43, 53, 63, -1]
    tenths = torch.arange(8) * torch.tensor(0.1)
    thirds = (torch.arange(8) / 3).bfloat16().float()
    want = [0.7, 10.8, 2.7, (tenths * tenths + 1 - tenths).sum().item(), thirds.sum().item(), 2.8, 13.5]
    assert floats.tolist() == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize(
    ("odd", "mistake", "words"),
    [
        ("negative", Mistake, "negative operand of //"),
        ("below zero", Mistake, "negative operand of //"),
        ("negative tile", Mistake, "negative operand of //"),
        ("wide", Mistake, "20000000000 does not fit into 32 bits"),
        ("asm", Unsupported, "assembly"),
        ("missing", Unsupported, "histogram"),
        ("pointer", OutOfBounds, "outside its tensor's 8 elements"),
        ("constant", Mistake, r"takes_constant\(N\) is a constexpr"),
        ("index", OutOfBounds, "index 10 of"),
    ],
)
def test_what_a_kernel_may_not_depend_on_is_an_error(odd, mistake, words):
    with pytest.raises(mistake, match=words):
        run(arithmetic, (1,), torch.zeros(8, dtype=torch.int32), torch.zeros(7), 10, 0.1, odd)


@gluon.jit
def truncated(a_desc, b_desc, out_ptr):
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE, 8])
    a = gl.allocate_shared_memory(gl.float32, a_desc.block_shape, a_desc.layout)
    b = gl.allocate_shared_memory(gl.float32, b_desc.block_shape, b_desc.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, 2 * a_desc.block_type.nbytes)
    load_tile(a_desc, [0, 0], bar, a)
    load_tile(b_desc, [0, 0], bar, b)
    mbarrier.wait(bar, 0)
    product = warpgroup_mma(a, b.permute([1, 0]), gl.zeros([SIDE, SIDE], gl.float32, SUM), use_acc=False)
    tile, pair = section_of(gl.program_id(0), 2, 3, 2)
    rows = gl.arange(0, SIDE, gl.SliceLayout(1, SUM))[:, None]
    columns = gl.arange(0, SIDE, gl.SliceLayout(0, SUM))[None, :]
    gl.store(out_ptr + ((pair * 2 + tile) * SIDE + rows) * SIDE + columns, product, mask=rows < SIDE - tile)


def test_functions_of_plain_triton_run_too_and_fp32_products_are_tf32():
    torch.manual_seed(0)
    a, b = torch.randn(64, 32), torch.randn(64, 32)
    out = torch.full((6, 64, 64), 9.0)
    layout = gl.NVMMASharedLayout.get_default_for([64, 32], gl.float32)
    run(truncated, (6,), *(TensorDescriptor.from_tensor(x, [64, 32], layout) for x in (a, b)), out)
    exact = a.double() @ b.double().T
    assert torch.allclose(out[0].double(), exact, atol=0.05)
    assert (out[0] - exact).abs().max() > 1e-4
    for pair in range(3):
        assert torch.equal(out[2 * pair], out[0])
        assert torch.equal(out[2 * pair + 1, :63], out[0, :63])
        assert (out[2 * pair + 1, 63] == 9).all()


# ── products of 8 bits ─────────────────────────────────────────────────────────────────────────────


@gluon.jit
def multiply_bytes(a_ptr, b_ptr, out_ptr, DTYPE: gl.constexpr, SUM: gl.constexpr, KEYS: gl.constexpr):
    """A product [64, 16] of rows of KEYS bytes."""
    SHARED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=8, rank=2)
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 32])
    BYTES: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    row = gl.arange(0, 64, gl.SliceLayout(1, BYTES))[:, None]
    column = gl.arange(0, KEYS, gl.SliceLayout(0, BYTES))[None, :]
    a = gl.allocate_shared_memory(DTYPE, [64, KEYS], SHARED)
    b = gl.allocate_shared_memory(DTYPE, [16, KEYS], SHARED)
    a.store(gl.load(a_ptr + row * KEYS + column))
    b.store(gl.load(b_ptr + gl.arange(0, 16, gl.SliceLayout(1, BYTES))[:, None] * KEYS + column))
    fence_async_shared()
    found = warpgroup_mma(a, b.permute([1, 0]), gl.zeros([64, 16], SUM, SUMS), use_acc=False)
    at = gl.arange(0, 64, gl.SliceLayout(1, SUMS))[:, None] * 16 + gl.arange(0, 16, gl.SliceLayout(0, SUMS))[None, :]
    gl.store(out_ptr + at, found)


def test_products_of_int8_are_exact():
    a, b = (torch.randint(-128, 128, (rows, 256), dtype=torch.int8) for rows in (64, 16))
    out = torch.zeros(64, 16, dtype=torch.int32)
    run(multiply_bytes, (1,), a, b, out, DTYPE=gl.int8, SUM=gl.int32, KEYS=256)
    assert torch.equal(out.long(), a.long() @ b.long().T)
    with pytest.raises(Mistake, match="int8 into"):
        run(multiply_bytes, (1,), a, b, torch.zeros(64, 16), DTYPE=gl.int8, SUM=gl.float32, KEYS=256)


def test_sums_of_e4m3_keep_13_bits_behind_the_point():
    torch.manual_seed(0)
    a, b = ((torch.rand(rows, 256) + 1).to(torch.float8_e4m3fn) for rows in (64, 16))
    out = torch.zeros(64, 16)
    run(multiply_bytes, (1,), a, b, out, DTYPE=gl.float8e4nv, SUM=gl.float32, KEYS=256)
    exact = a.double() @ b.double().T
    assert (out.view(torch.int32) & 0x3FF == 0).all()
    off = (exact - out) / exact
    assert (off >= 0).all()  # cut off, not rounded
    assert 2.0**-13 < off.max() < 8 * 2.0**-13
