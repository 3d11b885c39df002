"""A session of ``flash-quant``: the public call and its phases, on own copies of the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Launch, Preparing, RelL1
from attnbench.backends.buffers import Buffers
from attnbench.errors import Unavailable
from attnbench.workloads.base import ATTENTION_KINDS

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.flash.quant.prepare import Quantised
    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs


ANY, OUTLIERS = RelL1(0.055, 0.06, 0.1), RelL1(0.055, 0.06, 0.3)
"""Bounds of inputs whose own are not known; OUTLIERS also of captured ones.  One outlier of V with a large weight is an
output of many times the root mean square, and off by its own rounding: emulated, up to 0.22 of the largest output."""
PER_ELEMENT = 2.0
"""Limit of a single element without a causal mask, in units of a row's limit (`Budget.relative`).  An element is off by
half a step of its largest value, 1/16 of that term, and by the rounding of its score.  At 16384 keys one of a hundred
million was off by 0.088 of its largest term on an H200; emulated where such a term is met, up to 0.098."""
FEW_ROWS = 64
"Rows of a head from which on its error is that of many: a single row of outliers may be off by a tenth."


def bounds_by_input(case: AttentionCase) -> dict[str, RelL1]:
    """Return bounds of the relative L1 distance of this arithmetic, for kinds of inputs where it is known.

    The recipe written in torch was emulated against fp64 with 1 to 4096 keys and a single head, the worst of several
    seeds; at 4096 rows, and the largest on an H200 of whole outputs and of a head among 64:

        normal        0.0389 at 64 dims, 0.0387 at 128     H200: 0.0379, 0.0400; 0.0380, 0.0389 (0.0385, 0.0399 at 16384)
        outliers      0.0399 at 64 dims, 0.0450 at 128     H200: 0.0388, 0.0397; 0.0435, 0.0439
        channel-bias  0.0027, causal 0.0039                not measured
        video         0.0041, causal 0.0055                not measured

    Of 64 to 2048 rows of outliers a head is off by up to 0.055.  The outputs of the last two kinds are large beside
    the rounding of weights and values, which averages out with the number of keys n: the error grows like n^-0.4 and
    n^-0.25 below 4096.  Their bounds have a third to a half more, as the tensor cores add with 13 bits.  Bounds of few
    rows, of other head dims and of sequences of several lengths are those of every kind.

    Args:
        case: dense, with a causal mask or without.
    """
    rows, keys = case.batch * case.seqlen, case.seqlen_k
    others = dict.fromkeys(ATTENTION_KINDS, ANY)
    if case.packed or case.headdim < 64:
        return {**others, "outliers": OUTLIERS}
    if rows < FEW_ROWS:
        return {**others, "outliers": RelL1(0.12, 0.12, OUTLIERS.largest)}
    many, large, long = rows * case.nheads >= 4096, case.headdim > 64, keys / 4096
    far = ((0.048, 0.052) if large else (0.043, 0.047)) if many and long >= 1 else (0.06, 0.065)
    bias, video = (0.005, 0.0075) if case.causal else (0.004, 0.006)
    bias, video = bias * min(1.0, long) ** -0.4, video * min(1.0, long) ** -0.25
    return {
        **others,
        "normal": RelL1(0.040 if large and many and long <= 1 else 0.042, 0.045),
        "outliers": RelL1(*far, OUTLIERS.largest),
        "channel-bias": RelL1(bias, 1.1 * bias),
        "video": RelL1(video, 1.1 * video),
    }


class QuantFunction(Preparing):
    """The operation as a function of tensors [B, S, H, D]."""

    def __init__(self, case: AttentionCase, short: str) -> None:
        self.case, self.short = case, short

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Quantise, then compute attention."""
        import torch

        from attnbench.kernels.flash.quant import api

        problem = api.quant_problem_of(q, k, v, causal=self.case.causal, scale=self.case.scale)
        config = api.config_for(self.short or None, q)
        with torch.cuda.device_of(q):  # Triton launches on the current device
            with self.preparing():
                made = api.allocate(q, k, problem)
                api.launch_prepare(q, k, v, made, problem)
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
            lse = torch.empty(api.lse_shape(q, problem), dtype=torch.float32, device=q.device)
            api.launch_quant(made, out, lse, problem, config)
        return out


class QuantSession(Buffers):
    """Own copies of the inputs of one session; a call allocates its buffers, as a user's call does.

    The operation prepares in one launch.  Its phases `smooth` and `quantise` split that launch in two, which reads V
    and a sample of K from memory twice; they have buffers of their own, allocated by the first of them.
    """

    def __init__(self, case: AttentionCase, inputs: AttentionInputs, short: str) -> None:
        from attnbench.kernels.flash.quant import api

        super().__init__(inputs)
        self.qkv = self.own["q"], self.own["k"], self.own["v"]
        offsets = {name: self.own[name] for name in ("cu_seqlens_q", "cu_seqlens_k") if case.packed}
        bounds = {name: getattr(inputs, name) for name in ("max_seqlen_q", "max_seqlen_k") if case.packed}
        self.arguments: dict[str, Any] = {"causal": case.causal, "scale": case.scale, **offsets, **bounds}
        self.problem = api.quant_problem_of(*self.qkv, **self.arguments)
        api.check_offsets(self.problem, *self.qkv[:2])
        self.config = api.config_for(short or None, self.qkv[0])
        # A user's call names no configuration, and neither does the row of the default.
        self.arguments["config"] = self.config if short else None
        self.out: Tensor | None = None
        self.lse: Tensor | None = None

    def launch(self) -> Launch:
        """Return the launch of the whole operation, with its phases."""
        return Launch(
            forward=self.forward,
            outputs=self.outputs,
            reload=self.load,
            phases={"smooth": self.smooth, "quantise": self.quantise, "kernel": self.attend},
            notes=(f"forward {self.config.short}; quantisation is part of the call",),
        )

    @cached_property
    def made(self) -> Quantised:
        """The quantised tensors used by the phases."""
        from attnbench.kernels.flash.quant.api import allocate, launch_prepare

        made = allocate(*self.qkv[:2], self.problem)
        launch_prepare(*self.qkv, made, self.problem)
        return made

    @cached_property
    def results_of_phase(self) -> tuple[Tensor, Tensor]:
        """Out and lse written by the phase `kernel`."""
        import torch

        from attnbench.kernels.flash.quant.api import lse_shape

        q = self.qkv[0]
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        return out, torch.empty(lse_shape(q, self.problem), dtype=torch.float32, device=q.device)

    def smooth(self) -> None:
        """Compute statistics of K and V."""
        from attnbench.kernels.flash.quant.api import launch_smooth

        launch_smooth(*self.qkv, self.made, self.problem)

    def quantise(self) -> None:
        """Quantise Q, K and V to 8 bits."""
        from attnbench.kernels.flash.quant.api import launch_quantise

        launch_quantise(*self.qkv, self.made, self.problem)

    def attend(self) -> None:
        """Compute attention over the quantised tensors."""
        from attnbench.kernels.flash.quant.api import launch_quant

        launch_quant(self.made, *self.results_of_phase, self.problem, self.config)

    def run_forward(self) -> None:
        """Call the operation; the last results are freed first, so that peak memory is the call's own."""
        from attnbench.kernels.flash.quant.api import flash_quant_attention

        self.out = self.lse = None
        self.out, self.lse = flash_quant_attention(*self.qkv, **self.arguments)

    def run_backward(self) -> None:
        """Raise: there is no backward.

        Raises:
            Unavailable: always.
        """
        raise Unavailable("flash-quant: mode=bwd has no backward; fwd")

    def results(self) -> Mapping[str, Tensor]:
        """Results of the last forward."""
        assert self.out is not None  # read after a forward
        return {"out": self.out}

    def gradients(self) -> Mapping[str, Tensor]:
        """None."""
        return {}
