"""Bounds of masks at and around what 32 bits hold: every kernel is right there, or refuses in one line."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from attnbench.backends.mask import Mask
from attnbench.kernels.flash import problem as flash_problem
from attnbench.kernels.hstu.dense.problem import LARGEST_COUNT
from attnbench.kernels.shared.limits import LARGEST_ROWS, LARGEST_STRIDE, extent_fault, lies_in_rows
from attnbench.workloads.attention import WORKLOAD
from attnbench.workloads.attention.inputs import make_inputs
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD as HSTU
from attnbench.workloads.hstu.inputs import make_inputs as make_hstu

from .interpreter import interpreted

FAR = [
    2**30,
    2**31 - 129,
    2**31 - 2,
    2**31 - 1,
    2**31,
    2**31 + 1,
    2**32 - 1,
    2**32,
    2**32 + 3,
    2**40,
    2**63 - 1,
    2**63,
    2**64 + 1,
]
WINDOWS = [(far, far) for far in FAR] + [
    (-1, 2**31 - 1),
    (2**31 - 1, -1),
    (2**31 - 1, 0),
    (0, 2**31 - 1),
    (2**32 + 3, 2),
    (2, 2**32 + 3),
    (2**31 - 1, 2**31),
    (2**63, 2**31 - 1),
]


@pytest.fixture(scope="module")
def flash():
    with interpreted("attnbench.kernels.flash.api") as (module,):
        yield module


@pytest.fixture(scope="module")
def hstu():
    with interpreted("attnbench.kernels.hstu.dense.api", "attnbench.kernels.hstu.bsa.api") as modules:
        yield modules


def near(window, longest=4096):
    """The same window by numbers that every kernel holds."""
    return tuple(min(bound, longest) for bound in window)


def flash_inputs(queries, keys, dim, dtype=torch.float32, packed=False):
    torch.manual_seed(0)
    rows = [(queries,), (keys,)] if packed else [(2, queries), (2, keys)]
    q, dout = (torch.randn(*rows[0], 2, dim, dtype=dtype) for _ in range(2))
    k, v = (torch.randn(*rows[1], 1, dim, dtype=dtype) for _ in range(2))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), dout


def differentiated(flash, tensors, **given):
    q, k, v, dout = tensors
    out, lse = flash.flash_attention(
        q, k, v, forward="m16n16w4s1-ahead-fused" if given.pop("other", False) else "m16n16w4s1", **given
    )
    return [x.detach() for x in (out, lse, *torch.autograd.grad(out, (q, k, v), dout))]


def same(found, right):
    return all(torch.equal(x, y) for x, y in zip(found, right, strict=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
def test_the_bounds_of_a_flash_problem_are_those_of_a_window_that_hides_the_same(window, causal):
    q, k, v, _ = flash_inputs(20, 37, 16)
    problem = flash_problem.problem_of(q, k, v, window=window, causal=causal)
    assert problem.reach() == flash_problem.problem_of(q, k, v, window=near(window), causal=causal).reach()
    assert max(problem.reach().values()) <= 37
    bounds = [bound >= 0 for bound in window]
    assert problem.flags() == {"HAS_LEFT": bounds[0], "HAS_RIGHT": bounds[1] or causal, "PACKED": False}


@pytest.mark.parametrize("rows", [(14, 27), (27, 14)])
def test_flash_is_right_for_windows_of_any_size(flash, rows):
    tensors = flash_inputs(*rows, 16)
    for number, window in enumerate([(2**31 - 1, 2**31 - 1), (-1, 2**31 - 1), (2**32 + 3, 2)]):
        given = {
            "causal": number == 2,
            "other": number % 2 == 0,
            "backward": "b16x16w4s1-atomic" if number < 1 else "b16x16w4s1-r16x16w4s1",
        }
        right = differentiated(flash, tensors, window=near(window, 60), **given)
        assert same(differentiated(flash, tensors, window=window, **given), right), window


def test_flash_of_packed_sequences_takes_any_window_and_any_length_that_is_enough(flash):
    tensors = flash_inputs(50, 50, 16, packed=True)
    offsets = torch.tensor([0, 33, 50], dtype=torch.int32)
    given = {"cu_seqlens_q": offsets, "backward": "b16x16w4s1-atomic", "validate": True}
    right = differentiated(flash, tensors, window=(60, 60), max_seqlen_q=33, **given)
    for far in (2**31 - 1, 2**32 + 3):
        assert same(differentiated(flash, tensors, window=(60, far), max_seqlen_q=far, **given), right), far


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"window": (-2, 0)}, r"window=\(-2, 0\) is not a window; .*"),
        ({"window": (0, -(2**31))}, r"window=\(0, -2147483648\) is not a window; .*"),
        ({"window": (2.0**31, 0)}, r"window=\(2147483648\.0, 0\) is not a window; .*"),
        ({"scale": 1e300}, r"scale=1e\+300 is out of range; from 1e-30 to 1e\+30"),
        ({"scale": 1e-300}, r"scale=1e-300 is out of range; from 1e-30 to 1e\+30"),
        ({"scale": -1.0}, r"scale=-1\.0 cannot be used; a finite number over 0"),
    ],
)
def test_flash_refuses_what_no_kernel_holds(given, said):
    x = torch.zeros(1, 3, 2, 16)
    with pytest.raises(ValueError, match=f"^flash_attention: {said}$"):
        flash_problem.problem_of(x, x, x, **given)


def test_rows_tiles_and_strides_past_32_bits_are_refused_by_name():
    """Of tensors without memory: nothing is read."""

    def fault(sequences=1, longest=1, *, shape=(4, 2, 16), stride=None):
        x = torch.empty(shape, device="meta")
        return extent_fault({"q": x if stride is None else x.as_strided(shape, stride)}, sequences, longest)

    assert fault() is None
    assert fault(shape=(LARGEST_ROWS, 1, 1)) is None
    assert fault(shape=(LARGEST_ROWS + 1, 1, 1))[2:] == ("has too many rows", "at most 1073741824")
    assert fault(shape=(2**16, 2**14 + 1, 1, 4))[2] == "has too many rows"
    assert fault(stride=(LARGEST_STRIDE, 16, 1)) is None
    assert fault(stride=(LARGEST_STRIDE + 1, 16, 1))[:3] == (
        "q.stride",
        (LARGEST_STRIDE + 1, 16, 1),
        "has rows too far apart",
    )
    assert fault(shape=(1, 2, 16), stride=(2**40, 16, 1)) is None
    assert fault(shape=(1, 2**15 + 1, 256))[2] == "has rows that are too long"
    assert fault(2**20, 2**14, shape=(2**20, 1, 1)) is None
    assert fault(2**20, 2**14 + 1, shape=(2**20, 1, 1))[2].startswith("has 1074790400 tiles, of 1048576 sequences")
    far = torch.empty(4, 2, 16, device="meta").as_strided((4, 2, 16), (LARGEST_STRIDE + 1, 16, 1))
    assert [lies_in_rows(x) for x in (far, far[:1], far[..., ::2], far.contiguous())] == [False, True, False, True]
    x = torch.empty(2**30 + 1, 1, 8, device="meta")
    offsets = torch.empty(2, dtype=torch.int32, device="meta")
    with pytest.raises(ValueError, match=r"^flash_attention: q\.shape=\(1073741825, 1, 8\) has too many rows; at most"):
        flash_problem.problem_of(x, x, x, cu_seqlens_q=offsets, max_seqlen_q=8)


@pytest.mark.parametrize("values", [{}, {"causal": False}, {"num_targets": "5:2", "delta_q": 20}])
def test_dense_hstu_is_right_at_its_largest_bounds_and_refuses_larger_ones(hstu, values):
    dense, _ = hstu
    case = HSTU.case(
        {"batch": 2, "seqlen": 40, "nheads": 1, "attn_dim": 16, "dtype": "fp32", "mode": "bwd", "lengths": "40:23"}
        | values
    )
    inputs = make_hstu(case, seed=1, kind="normal", device="cpu")
    cut = {"block_m": 16, "block_n": 16, "warps": 4, "stages": 1, "silu": "exp"}

    def run(**given):
        q, k, v = (x.clone().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))
        queries = {"offsets_q": inputs.seq_offsets_q, "max_seqlen_q": inputs.max_seqlen_q} if case.delta_q else {}
        out = dense.hstu_attention(
            q,
            k,
            v,
            inputs.seq_offsets,
            inputs.max_seqlen,
            num_targets=inputs.num_targets,
            causal=case.causal,
            scaling_seqlen=case.scaling_seqlen,
            **queries,
            validate=True,
            forward=dense.ForwardConfig(**cut),
            backward=dense.BackwardConfig(columns=dense.ColumnConfig(**cut, atomic=True), rows=None),
            **given,
        )
        return [x.detach() for x in (out, *torch.autograd.grad(out, (q, k, v), inputs.dout))]

    for given, close in (
        ({"max_attn_len": LARGEST_COUNT}, {"max_attn_len": 41}),
        ({"contextual_len": LARGEST_COUNT}, {"contextual_len": 41}),
        ({"max_attn_len": LARGEST_COUNT, "contextual_len": 3}, {"max_attn_len": 41, "contextual_len": 3}),
    ):
        assert same(run(**given), run(**close)), given
    for name in ("max_attn_len", "contextual_len"):
        for far in (-1, LARGEST_COUNT + 1, 2**31 - 1, 2**31, 2**32 + 3, 2**63):
            with pytest.raises(ValueError, match=f"^hstu_attention: {name}={far} cannot be used; a whole number from"):
                run(**{name: far})
    with pytest.raises(ValueError, match=r"^hstu_attention: alpha=1e\+39 is too large; at most 1e\+30$"):
        run(alpha=1e39)


def test_block_sparse_hstu_is_right_at_its_largest_window_and_refuses_larger_ones(hstu):
    _, sparse = hstu
    case = HSTU.case(
        {
            "batch": 2,
            "seqlen": 70,
            "nheads": 1,
            "attn_dim": 16,
            "dtype": "fp32",
            "mode": "bwd",
            "lengths": "70:33",
            "block_size": 16,
            "block_counts": 2,
            "num_targets": "3:0",
            "local_window": 5,
        }
    )
    inputs = make_hstu(case, seed=1, kind="normal", device="cpu")
    config = sparse.BsaConfig(silu="exp")

    def run(window):
        leaves = [x.clone().requires_grad_() for x in (inputs.q, inputs.k, inputs.v, inputs.gates)]
        out, blocks = sparse.hstu_bsa_attention(
            *leaves[:3],
            inputs.seq_offsets,
            inputs.max_seqlen,
            gates=leaves[3],
            num_targets=inputs.num_targets,
            block_size=16,
            block_counts=2,
            local_window=window,
            config=config,
            validate=True,
        )
        return [x.detach() for x in (out, blocks, *torch.autograd.grad(out, leaves, inputs.dout))]

    assert same(run(LARGEST_COUNT), run(80))
    for far in (-1, 0, LARGEST_COUNT + 1, 2**31 - 1, 2**31, 2**32 + 3, 2**63):
        with pytest.raises(ValueError, match=f"^hstu_bsa_attention: local_window={far} cannot be used; a whole number"):
            run(far)


@pytest.mark.parametrize("window", [window for window in WINDOWS if min(window) < 2**24 <= max(window)] + [(2**24, 9)])
def test_a_case_takes_any_window_and_everything_that_follows_from_it_is_right(window):
    """Oracle, work, mask and the case's own dictionary."""

    def of(window):
        return WORKLOAD.case(
            {
                "batch": 1,
                "seqlen": 9,
                "seqlen_k": 14,
                "nheads": 1,
                "headdim": 4,
                "dtype": "fp32",
                "mode": "bwd",
                "window": window,
            }
        )

    case, other = of(window), of(tuple(min(bound, 20) for bound in window))
    assert max(case.window or (0,)) < 2**24
    assert WORKLOAD.case(case.to_dict()) == case
    assert WORKLOAD.work(case) == WORKLOAD.work(other)
    assert Mask.of(case) == Mask.of(other)
    inputs = make_inputs(case, seed=0, kind="normal", device="cpu")
    found, right = (WORKLOAD.oracle("softmax", one, inputs, dtype=torch.float64, draw=Draw()) for one in (case, other))
    assert same(found.values(), right.values())
