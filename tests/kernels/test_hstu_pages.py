"""Pages copied between pools, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from .interpreter import interpreted


@pytest.mark.parametrize("shape", [(2, 32, 1, 1), (2, 32, 3, 40), (2, 64, 2, 128)], ids=str)
@pytest.mark.parametrize(("dtype", "programs"), [(torch.bfloat16, 3), (torch.float32, 64), (torch.float64, 1)], ids=str)
def test_pages_arrive_where_they_are_wanted(shape, dtype, programs):
    with interpreted("attnbench.kernels.hstu.pages.api") as (api,):
        source = torch.arange(7 * torch.Size(shape).numel()).view(7, *shape).to(dtype)
        for wanted in ([], [3], [6, 0, 2, 5]):
            target = torch.full((9, *shape), -1.0, dtype=dtype)
            places = [8, 1, 4, 0][: len(wanted)]
            api.copy_pages(
                source,
                target,
                torch.tensor(wanted, dtype=torch.int64),
                torch.tensor(places, dtype=torch.int64),
                programs=programs,
            )
            assert torch.equal(target[places], source[wanted])
            rest = [page for page in range(9) if page not in places]
            assert (target[rest] == -1).all()


def test_pages_of_a_layer_are_copied_from_a_pool_with_all_layers_of_a_page_together():
    with interpreted("attnbench.kernels.hstu.pages.api") as (api,):
        source, target = torch.randn(5, 3, 2, 32, 1, 8), torch.zeros(3, 6, 2, 32, 1, 8)
        for layer in range(3):
            api.copy_pages(source[:, layer], target[layer], torch.tensor([4, 0]), torch.tensor([1, 5]))
        assert torch.equal(target[:, [1, 5]], source[[4, 0]].transpose(0, 1))
        assert (target[:, [0, 2, 3, 4]] == 0).all()
        api.copy_pages(target[1], source[:, 2], torch.tensor([1]), torch.tensor([3]))
        assert torch.equal(source[3, 2], source[4, 1])


def test_what_cannot_be_copied_is_named():
    from attnbench.kernels.hstu.pages.api import copy_pages

    pool, some = torch.zeros(3, 2, 32, 1, 4), torch.zeros(1, dtype=torch.int64)
    odd, every_second = torch.zeros(769)[1:].view(pool.shape), torch.zeros(4, dtype=torch.int64)[::2]
    for given, said in (
        ((pool, pool.half(), some, some), r"source=torch.float32\[2, 32, 1, 4\] does not fit; pages of torch.float16"),
        ((pool, pool[:, :1], some, some), "source=.* does not fit"),
        ((pool[..., ::2], pool[..., ::2], some, some), "is not a pool of whole words"),
        ((pool, pool, some.int(), some), r"from_pages=torch.int32\[1\] does not fit; int64"),
        ((odd, pool, some, some), "source=.* is not a pool of whole words; contiguous pages of 8-byte words"),
        ((pool, odd, some, some), "target=.* is not a pool of whole words"),
        ((pool, pool, every_second, every_second), r"from_pages.stride=\(2,\) has gaps; contiguous"),
        ((pool, pool, every_second.clone(), every_second), r"to_pages.stride=\(2,\) has gaps"),
        ((pool, None, some, some), "target=None is of type NoneType; a tensor"),
        ((pool, pool, some, some[:0]), r"to_pages=torch.int64\[0\] does not fit"),
        ((pool, pool, some, some), r"target.device=cpu has no compiled kernels; a CUDA device"),
    ):
        with pytest.raises(ValueError, match=f"hstu_copy_pages: .*{said}") as refused:
            copy_pages(*given)
        assert "\n" not in str(refused.value)
