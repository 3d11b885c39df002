"""The ring as on a GPU: our kernels in Triton's interpreter in place of PyTorch's operations, with ranks as threads."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from parallel_problems import inputs_of, problem_of, truth
from test_forms_on_threads import computed

pytest.importorskip("triton")

from tests.kernels.interpreter import interpreted

from attnbench.parallel import attend, merge
from attnbench.parallel.forms import ring
from attnbench.parallel.problem import FUNCTIONS, HSTU

SHAPES = [(2, (41,)), (4, (4, 4)), (4, (9,)), (2, (3, 20, 0)), (3, (30, 1))]
"World and lengths: odd, a row of each sequence on a rank, chunks without rows, sequences dealt whole."


@pytest.fixture(scope="module")
def kernels():
    names = ("flash.api", "flash.merge", "hstu.dense.api")
    with interpreted(*(f"attnbench.kernels.{name}" for name in names)) as (_, flash_merge, hstu):
        one_at_a_time = threading.Lock()

        def alone(call):
            def locked(*arguments):
                with one_at_a_time:
                    return call(*arguments)

            return locked

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attend, "_plain", alone(attend._flash))
            patch.setattr(attend, "_silu", alone(attend._hstu))
            patch.setattr(attend, "_silu_parts", alone(attend._hstu_parts))
            patch.setattr(merge, "sum_parts", alone(hstu.hstu_sum))
            patch.setattr(merge, "merge", alone(flash_merge.merge_outputs))
            yield


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("world", "lengths"), SHAPES)
def test_right_by_our_kernels(kernels, world, lengths, function, causal):
    narrow = {"dtype": "float16", "heads": 2, "heads_kv": 2}
    problem = replace(problem_of(lengths, causal=causal, function=function), **narrow)
    problem = replace(problem, dim=24) if function == HSTU else problem  # less than the columns of a tile
    tensors = {name: x.half() for name, x in inputs_of(problem).items()}
    wanted = truth(problem, {name: x.float() for name, x in tensors.items()})
    assert (computed(ring.Form, problem, tensors, world) - wanted).abs().max() < 2e-3
