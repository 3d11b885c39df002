"""The wide product of an HSTU layer with SiLU and append, in Triton's interpreter: against fp64, and against the kernels
that it stands for."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from torch.nn.functional import silu

from attnbench.kernels.hstu.projection.config import ProjectionConfig, default_config
from attnbench.kernels.shared.counts import RowCount

from .interpreter import interpreted
from .paged_step import make_step

NAMES = tuple(
    f"attnbench.kernels.hstu.{name}" for name in ("projection.api", "paged.api", "paged.problem", "layer.api")
)
EPS = {torch.float16: 2.0**-11, torch.float32: 2.0**-23}
"Half a step of a result.  The interpreter multiplies no bf16."
STEPS = {
    "one-user": [(70, 20, 9)],
    "nothing-cached": [(0, 33, 2)],
    "no-new-history": [(40, 0, 5)],
    "candidates-alone-and-none": [(31, 1, 0), (32, 0, 3), (33, 31, 1), (0, 0, 0), (64, 64, 0)],
    "many": [(3 * at, at % 3, at % 2) for at in range(17)],
}


@pytest.fixture(scope="module")
def kernels():
    with interpreted(*NAMES) as found:
        yield found


def drawn(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Given:
    """A step of some lengths, and rows beyond it, whose input is NaN where `padded`."""

    def __init__(self, problem, lengths, *, page_size=32, heads=2, dim=16, inputs=40, dtype=torch.float16, padded=0):
        made = make_step(lengths, page_size=page_size, heads=heads, dim=dim, dtype=dtype)
        self.step, self.pool, self.heads = problem.Step(**made.table), made.pool, heads
        self.rows = len(made.q)
        self.x = drawn(self.rows + padded, inputs, dtype=dtype)
        self.x[self.rows :] = torch.nan
        self.weight = drawn(4 * heads * dim, inputs, dtype=dtype, seed=1) / inputs**0.5
        self.bias = drawn(4 * heads * dim, dtype=dtype, seed=2)

    def parts(self, y):
        u, v, q, k = y.split(y.shape[1] // 4, dim=1)
        return u, *(x.unflatten(1, (self.heads, -1)) for x in (q, k, v))

    def product(self, dtype=torch.float64):
        return self.x.to(dtype) @ self.weight.to(dtype).T + self.bias.to(dtype)


def run(api, given, *, config="m16n32k16w4s1", **how):
    pool = given.pool.clone()
    found = api.project(
        given.x, given.weight, given.bias, heads=given.heads, pool=pool, step=given.step, config=config, **how
    )
    return found, pool


def held(found, given, *, whole):
    """A rounding of the product and one of SiLU, whose slope is at most 1.1, and the sum in fp32."""
    dtype, rows = given.x.dtype, given.rows
    assert found.q.shape == (len(given.x), given.heads, given.weight.shape[0] // 4 // given.heads)
    sizes = given.x.double().abs() @ given.weight.double().abs().T + given.bias.double().abs()
    for name, truth, size in zip("uqkv", given.parts(given.product()), given.parts(sizes), strict=True):
        wanted = silu(truth) if whole and name != "u" else truth
        off = (getattr(found, name).double() - wanted)[:rows].abs()
        assert (off <= (EPS[dtype] * (1.2 * truth.abs() + wanted.abs()) + 2.0**-22 * size)[:rows]).all(), name


@pytest.mark.parametrize(("whole", "config"), [(True, "m16n32k16w4s1"), (False, "m32n64k16w4s2-tma")])
@pytest.mark.parametrize("name", STEPS)
def test_rows_and_pages_are_those_of_the_separate_kernels(kernels, name, whole, config):
    """Pages bit by bit what an append of the same keys and values writes, and nothing else in them is touched."""
    api, paged, problem, _ = kernels
    given = Given(problem, STEPS[name], padded=3)
    found, pool = run(api, given, silu=whole, config=config)
    held(found, given, whole=whole)
    wanted = given.pool.clone()
    paged.hstu_paged_append(found.k[: given.rows], found.v[: given.rows], wanted, given.step)
    assert torch.equal(pool.nan_to_num(9.0), wanted.nan_to_num(9.0))
    history = sum(new for _, new, _ in STEPS[name])
    written = (pool.nan_to_num(9.0) != given.pool.nan_to_num(9.0)).any(dim=4).sum()
    assert written == 2 * given.heads * history


@pytest.mark.parametrize("page_size", [32, 64, 128])
@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (3, 8), (1, 40), (2, 24)])
def test_any_heads_and_pages(kernels, heads, dim, page_size):
    """Tiles that have columns of several parts, or of half a head; keys that end with a page, and begin one."""
    api, paged, problem, _ = kernels
    lengths = [(page_size - 2, 4, 1), (page_size, 3, 2), (0, page_size, 0)]
    given = Given(problem, lengths, page_size=page_size, heads=heads, dim=dim, inputs=33, padded=1)
    found, pool = run(api, given, config="m32n16k32w4s1")
    held(found, given, whole=True)
    wanted = given.pool.clone()
    paged.hstu_paged_append(found.k[: given.rows], found.v[: given.rows], wanted, given.step)
    assert torch.equal(pool.nan_to_num(9.0), wanted.nan_to_num(9.0))


@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 63])
def test_without_pages_every_row_is_computed(kernels, rows, dtype):
    api = kernels[0]
    given = Given(kernels[2], [(0, rows, 0)], dtype=dtype)
    for whole in (True, False):
        found = api.project(given.x, given.weight, given.bias, heads=2, silu=whole)
        assert found.u.shape == (rows, 32)
        held(found, given, whole=whole)


def test_results_are_rounded_where_those_of_separate_kernels_are(kernels):
    """SiLU of the product as it is stored, by the kernel that is for it: bit by bit."""
    api, _, problem, layer = kernels
    given = Given(problem, STEPS["candidates-alone-and-none"])
    smooth, plain = (run(api, given, silu=whole)[0] for whole in (True, False))
    for name in "qkv":
        assert torch.equal(getattr(smooth, name).flatten(1), layer.silu(getattr(plain, name).flatten(1).clone()))
    assert torch.equal(smooth.u, plain.u)


def test_a_step_without_candidates_has_no_table_of_them(kernels):
    api, _, problem, _ = kernels
    given = Given(problem, [(30, 7, 0), (0, 5, 0)])
    _, wanted = run(api, given)
    table = {name: getattr(given.step, name) for name in problem.Step.__slots__} | {"num_targets": None}
    given.step = problem.Step(**table)
    assert torch.equal(run(api, given)[1].nan_to_num(9.0), wanted.nan_to_num(9.0))


def test_rows_are_alike_in_every_tile(kernels):
    """A row's bits depend on no other row, nor on the place where it stands: scores do not change with the batch."""
    api, _, problem, _ = kernels
    given = Given(problem, [(0, 37, 0)])
    whole = api.project(given.x, given.weight, given.bias, heads=2, config="m16n32k16w4s1")
    for first in (0, 5, 16, 36):
        some = api.project(given.x[first:].contiguous(), given.weight, given.bias, heads=2, config="m16n32k16w4s1")
        assert all(torch.equal(a[first:], b) for a, b in zip(whole, some, strict=True))


def test_the_default_fills_the_card_in_one_wave():
    """Of the model `bench` on an H200, and of other cards, precisions and sizes; counts of rows are compared as numbers."""
    h200 = {"processors": 132, "tma": True}
    for rows in (384, RowCount(384, "384")):
        found = default_config((9, 0), 2, rows, 4096, **h200)
        assert found.short == "m128n128k64w8s4-tma"
        assert -(-384 // found.block_m) * -(-4096 // found.block_n) == 96
    assert default_config((9, 0), 2, 384, 2048, **h200).short == "m128n64k64w4s4-tma"
    assert default_config((9, 0), 2, 33, 4096, **h200).short == "m64n32k64w4s4-tma"
    assert default_config((9, 0), 2, 384, 4096, processors=132, tma=False).short == "m128n128k32w8s4"
    assert default_config((8, 0), 2, 384, 4096, processors=108, tma=True).short == "m128n128k32w8s4"
    assert default_config((12, 0), 2, 384, 4096, processors=108, tma=True).short == "m128n128k64w8s3-tma"
    assert default_config((9, 0), 4, 384, 4096, **h200).loads == "pointer"


def test_what_cannot_be_used_is_named(kernels):
    api, _, problem, _ = kernels
    given = Given(problem, [(10, 5, 2)])
    x, weight, bias = given.x, given.weight, given.bias
    paged = {"pool": given.pool, "step": given.step}
    for given_too, said in (
        ({"x": x.double()}, "hstu_project: x.dtype=torch.float64 does not fit; bfloat16, float16 or float32"),
        ({"x": x[0]}, r"hstu_project: x.shape=\(40,\) does not fit; 2 dims"),
        ({"x": x.T}, "hstu_project: x.stride=.* has gaps; rows one after another"),
        ({"x": x[:, :8].contiguous()}, r"hstu_project: x.shape=\(7, 8\) does not fit; \[rows, 40\], as of the weight"),
        ({"weight": weight.float()}, "hstu_project: weight.dtype=torch.float32 does not fit"),
        ({"weight": None}, "hstu_project: weight=None is of type NoneType; a tensor"),
        ({"bias": bias[:4]}, r"hstu_project: bias.shape=\(4,\) does not fit; \(128,\)"),
        ({"heads": 3}, r"hstu_project: weight.shape=\(128, 40\) does not fit; 4 · 3 heads of equal dims"),
        ({"heads": 0}, "hstu_project: heads=0 cannot be used; a whole number from 1"),
        ({"pool": given.pool}, "hstu_project: step=None does not fit a pool; both or neither"),
        ({"step": given.step}, "hstu_project: pool=None does not fit a step; both or neither"),
        ({**paged, "heads": 4}, r"hstu_project: k.shape=\(7, 4, 8\) does not fit; \(7, 2, 16\), as of the pool"),
        ({**paged, "pool": given.pool.float()}, "hstu_project: k.dtype=torch.float16 does not fit; torch.float32"),
        ({"config": "m48n16k16w4s1"}, "hstu_project: config=m48n16k16w4s1 "),
        ({"config": 3}, "hstu_project: config=3 is of type int; a ProjectionConfig, its short form, or None"),
        (
            {"x": x[:, :9].contiguous(), "weight": weight[:, :9].contiguous(), "config": ProjectionConfig.EXAMPLE},
            r"hstu_project: x.stride=\(9, 1\) is no multiple of 16 bytes, as loads=tma needs; an aligned tensor",
        ),
        (
            {"x": x.float(), "weight": weight.float(), "bias": bias.float(), "config": ProjectionConfig.EXAMPLE},
            "hstu_project: config.loads=tma takes no fp32, which is multiplied exactly; pointer",
        ),
    ):
        named = {"x": x, "weight": weight, "bias": bias, "heads": 2} | given_too
        for _ in range(2):
            with pytest.raises(ValueError, match=said) as refused:
                api.project(**named)
        assert "\n" not in str(refused.value)
