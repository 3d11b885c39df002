"""``cp-torch``: torch's own context parallelism for SDPA, with cuDNN (`parallel/forms/torch_ring`)."""

from __future__ import annotations

from attnbench.backends.context_parallel import ContextParallel


class CpTorch(ContextParallel):
    """An experimental API of torch; in processes of its own, because its patch of SDPA survives errors."""

    name, form = "cp-torch", "torch-ring"
    title = "torch context_parallel, cuDNN"
    tested = "NVIDIA H200, torch 2.11"
    module, ours, compiles = "torch.distributed.tensor.experimental", False, False
    devices = ("cuda",)
    functions, dtypes = ("softmax",), ("fp16", "bf16")
    one_sequence = one_head_group = True
    keeps_ranks = False  # its settings affect the whole process
