from pathlib import Path

import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.registry import all_backends
from attnbench.errors import Unsupported
from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.attention.inputs import make_inputs

from .reference import expected

FILE = Path(__file__).parents[2] / "examples" / "my_kernel.py"


@pytest.mark.parametrize("more", [{}, {"causal": True}, {"causal": True, "seqlen_k": 300}])
def test_the_example_joins_and_is_right(more):
    backend = all_backends([str(FILE)])["chunked"]
    case = AttentionCase(batch=1, seqlen=259, nheads=1, headdim=8, dtype="fp32", mode="fwd-bwd", **more)
    backend.probe()
    backend.check(case, Machine("cpu"))
    inputs = make_inputs(case, seed=1, kind="normal", device="cpu")
    with backend.session(case, inputs) as launch:
        launch.call(case.mode)()
        got, want = launch.outputs(), expected(case, inputs)
    for key, tensor in want.items():
        torch.testing.assert_close(got[key].double(), tensor, rtol=1e-4, atol=1e-4)


def test_the_example_is_short_and_refuses_what_it_does_not_do():
    assert len(FILE.read_text().splitlines()) < 30
    case = AttentionCase(batch=1, seqlen=9, nheads=2, nheads_kv=1, headdim=8)
    with pytest.raises(Unsupported, match="chunked: nheads_kv=1 differs from nheads; the nheads, 2"):
        all_backends([str(FILE)])["chunked"].check(case, Machine("cpu"))
