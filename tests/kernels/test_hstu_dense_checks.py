"""What cannot be used is answered in one line that names argument and value, before anything is launched."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.hstu.dense.api import hstu_attention

TOKENS = 12


def call(**changes):
    x = torch.zeros(TOKENS, 2, 8)
    given = {"q": x, "k": x, "v": x, "offsets": torch.tensor([0, 5, 12]), "max_seqlen": 7} | changes
    return hstu_attention(**given)


def of(*shape, **options):
    return torch.zeros(*shape, **options)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": of(())}, r"q.shape=\(\) is not packed; \[rows, heads, dims\]"),
        ({"q": of(12, 2, 0)}, r"q.shape=\(12, 2, 0\) has too many dims or none; 1 to 256 dims"),
        ({"offsets": torch.tensor(12)}, r"offsets.shape=\(\) does not fit; \[1\] for 0 sequences"),
        ({"max_seqlen": None}, r"max_seqlen=None cannot be used; a whole number from 0 to 16777216"),
        ({}, r"q.device=cpu has no compiled kernels; a CUDA device"),
        ({"q": of(12, 16)}, r"q.shape=\(12, 16\) is not packed; \[rows, heads, dims\]"),
        (
            {"q": of(12, 2, 8, dtype=torch.float64)},
            r"q.dtype=torch.float64 is not supported; bfloat16, float16 or float32",
        ),
        ({"k": of(12, 2, 8, dtype=torch.float16)}, r"k.dtype=torch.float16 does not fit; torch.float32, q's"),
        ({"v": of(12, 2, 8, device="meta")}, r"v.device=meta does not fit; cpu, q's"),
        ({"k": of(12, 3, 8)}, r"k.shape\[1\]=3 does not fit; 2, q's heads"),
        ({"k": of(12, 2, 16)}, r"k.shape\[2\]=16 does not fit; 8, q's dims"),
        ({"v": of(11, 2, 8)}, r"v.shape\[0\]=11 does not fit; 12, k's rows"),
        ({"v": of(12, 2, 300)}, r"v.shape=\(12, 2, 300\) has too many dims or none; 1 to 256 dims"),
        ({"v": of(12, 2, 16)[:, :, ::2]}, r"v.stride=\(32, 16, 2\) has gaps in the last dim; a last stride of 1"),
        ({"q": of(3, 2, 8)}, r"q.shape\[0\]=3 does not fit; 12, k's rows; offsets_q says where they differ"),
        ({"offsets": torch.tensor([0.0, 12.0])}, r"offsets.dtype=torch.float32 is not supported; int32 or int64"),
        (
            {"offsets": torch.zeros(2, 2, dtype=torch.int32)},
            r"offsets.shape=\(2, 2\) does not fit; \[2\] for 1 sequences",
        ),
        ({"offsets": torch.tensor([0, 0, 5, 5, 12, 12])[::2]}, r"offsets.stride=\(2,\) has gaps; contiguous"),
        ({"num_targets": torch.tensor([1])}, r"num_targets.shape=\(1,\) does not fit; \[2\] for 2 sequences"),
        ({"offsets_q": torch.tensor([0, 1])}, r"offsets_q.shape=\(2,\) does not fit; \[3\] for 2 sequences"),
        ({"max_seqlen": -1}, r"max_seqlen=-1 cannot be used; a whole number from 0 to 16777216"),
        ({"max_attn_len": 0}, r"max_attn_len=0 cannot be used; a whole number from 1 to 16777216"),
        ({"contextual_len": True}, r"contextual_len=True cannot be used; a whole number from 0 to 16777216"),
        ({"scaling_seqlen": 0}, r"scaling_seqlen=0 cannot be used; a whole number from 1 to 16777216"),
        ({"max_seqlen": 2**33}, r"max_seqlen=8589934592 cannot be used; a whole number from 0 to 16777216"),
        ({"causal": "no"}, r"causal='no' cannot be used; True or False"),
        ({"offsets": [0, 5, 12]}, r"offsets=\[0, 5, 12\] is of type list; a tensor"),
        ({"num_targets": 5}, r"num_targets=5 is of type int; a tensor"),
        ({"q": None}, r"q=None is of type NoneType; a tensor"),
        ({"offsets": None}, r"offsets=None is of type NoneType; a tensor"),
        ({"alpha": 10**400}, r"alpha=inf is not finite; a finite number"),
        ({"alpha": torch.tensor(1.0)}, r"alpha=tensor\(1\.\) is of type Tensor; a number, or None"),
        ({"q": [1]}, r"q=\[1\] is of type list; a tensor"),
        ({"alpha": "a"}, r"alpha='a' is of type str; a number, or None"),
        ({"forward": "f128x64w8s2"}, r"forward='f128x64w8s2' is of type str; a ForwardConfig, or None"),
        ({"alpha": float("inf")}, r"alpha=inf is not finite; a finite number"),
    ],
)
def test_shapes_dtypes_devices_and_numbers_on_every_call(changes, words):
    with pytest.raises(ValueError, match=f"^hstu_attention: {words}$"):
        call(**changes)


def nan_at(*where):
    x = of(TOKENS, 2, 8)
    x[where] = torch.nan
    return x


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"offsets": torch.tensor([1, 5, 12])}, r"offsets\[0\]=1 is not the start; 0"),
        ({"offsets": torch.tensor([0, 5, 3, 12])}, r"offsets\[2\]=3 falls from 5; offsets that never decrease"),
        ({"offsets": torch.tensor([0, 5, 11])}, r"offsets\[2\]=11 is not the end of k; its 12 rows"),
        ({"offsets": torch.tensor([0, 6, 13])}, r"offsets\[2\]=13 is not the end of k; its 12 rows"),
        ({"max_seqlen": 6}, r"max_seqlen=6 is below the 7 rows of sequence 1; at least 7"),
        ({"max_seqlen_q": 0}, r"max_seqlen_q=0 is below the 7 rows of sequence 1; at least 7"),
        (
            {"offsets_q": torch.tensor([0, 6, 12])},
            r"offsets_q\[1\]=6 gives sequence 0 6 queries and 5 keys; "
            r"no more queries than keys",
        ),
        (
            {"offsets_q": torch.tensor([0, 5, 12]), "max_seqlen_q": 5},
            r"max_seqlen_q=5 is below the 7 rows of sequence 1; at least 7",
        ),
        ({"num_targets": torch.tensor([6, 0])}, r"num_targets\[0\]=6 is out of range; from 0 to its 5 rows"),
        ({"num_targets": torch.tensor([0, -1])}, r"num_targets\[1\]=-1 is out of range; from 0 to its 7 rows"),
        ({"v": nan_at(3, 1, 2)}, r"v\[3, 1, 2\]=nan is not finite; finite values"),
    ],
)
def test_values_inside_tensors_where_asked_for(changes, words):
    with pytest.raises(ValueError, match=f"^hstu_attention: {words}$"):
        call(**changes, validate=True)
