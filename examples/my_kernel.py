"""A backend of your own: attention over 256 queries at a time, so that the scores are never kept whole."""

from contextlib import contextmanager

from attnbench.backends.dense import DenseBackend, Limits
from attnbench.backends.differentiable import differentiable


class Chunked(DenseBackend):
    name, title, install, devices = "chunked", "Chunked PyTorch", "this file", ("cpu", "cuda")
    limits = Limits(dtypes=("fp32", "fp16", "bf16"), headdim_v=True, bottom_right=True, backward=True)  # else refused

    @contextmanager
    def session(self, case, inputs):
        import torch

        def attend(q, k, v):  # [B, H, S, D]
            chunks = []
            for first in range(0, case.seqlen, 256):
                here = first + case.seqlen_k - case.seqlen  # the key position of the chunk's first query
                seen = slice(0, here + 256 if case.causal else None)
                scores = q[:, :, first : first + 256] @ k[:, :, seen].mT * case.scale
                if case.causal:
                    future = torch.ones_like(scores, dtype=torch.bool).triu(here + 1)
                    scores = scores.masked_fill(future, -torch.inf)
                chunks.append(scores.softmax(-1) @ v[:, :, seen])
            return torch.cat(chunks, dim=2)

        yield differentiable(attend, case, inputs, heads_first=True)
