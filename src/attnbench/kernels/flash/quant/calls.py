"""A call of the quantised kernels: its configuration, its problem, and its launches."""

from __future__ import annotations

from functools import partial
from typing import Any

import triton
from torch import Tensor

from attnbench.kernels.flash.problem import Problem, bounded, bounds_of, results_of
from attnbench.kernels.flash.quant.config import FORWARD, QuantConfig, Shape, default_config
from attnbench.kernels.flash.quant.forward import launch_quant
from attnbench.kernels.flash.quant.portable.forward import flash_quant_forward
from attnbench.kernels.flash.quant.prepare import allocate, launch_prepare
from attnbench.kernels.flash.quant.problem import WHO, check_offsets, quant_problem_of, wrong
from attnbench.kernels.shared.card import capability_of, takes_compiled
from attnbench.kernels.shared.kept import Kept, Launches, Results, exact, facts_of
from attnbench.kernels.shared.limits import as_float, check_flags


def config_for(given: QuantConfig | str | None, q: Tensor) -> QuantConfig:
    """The configuration of a call: the one passed, if it is valid for the shape, otherwise the tuned default.

    Raises:
        ValueError: it cannot be parsed or used; the message says why and names the nearest valid one.
    """
    capability = capability_of(q)
    if given is None:
        return default_config(Shape(dim=q.shape[-1], capability=capability or (0, 0)))
    # Without a card a name is checked as for an H200.
    return FORWARD.given(WHO, given, Shape(dim=q.shape[-1], capability=capability or (9, 0)))


def check_device(q: Tensor) -> None:
    """Refuse CPU tensors where the kernels are compiled, and cards that do not multiply e4m3.

    Raises:
        ValueError: naming the device and what is accepted.
    """
    if isinstance(flash_quant_forward, triton.JITFunction) and not takes_compiled(q):
        raise wrong("q.device", q.device, "has no compiled kernels", "a CUDA device")
    capability = capability_of(q)
    if capability and capability < (8, 9):
        raise wrong("q.device", f"sm_{capability[0]}{capability[1]}", "does not multiply e4m3", "sm_89 or later")


CALLS: Kept[Launches] = Kept()


def _run(
    problem: Problem,
    config: QuantConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
) -> Results:
    problem = problem.at(cu_seqlens_q, cu_seqlens_k)
    out, lse = results_of(q, q.shape[-1], problem)
    made = allocate(q, k, problem)
    launch_prepare(q, k, v, made, problem)
    launch_quant(made, out, lse, problem, config)
    return out, lse


def call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    causal: bool,
    scale: float | None,
    config: QuantConfig | str | None,
    *,
    validate: bool = False,
) -> tuple[Tensor, Tensor]:
    """Check the arguments, those of `flash_quant_attention`, and compute attention.

    Raises:
        ValueError: as `flash_quant_attention` says.
    """
    tensors, scale = (q, k, v, cu_seqlens_q, cu_seqlens_k), None if scale is None else as_float(scale)
    packed = cu_seqlens_q is not None
    bounds: tuple[Any, Any] = max_seqlen_q, max_seqlen_k
    if packed:
        bounds = bounds_of(q, k, *bounds)
    jagged = range(3 if packed else 0)
    key = facts_of(*tensors, jagged=jagged), exact(causal, scale, *bounds, config)
    launches = CALLS.get(key)
    if launches is None or validate is not False:
        check_flags(WHO, causal=causal, validate=validate)
        problem = quant_problem_of(
            q,
            k,
            v,
            causal=causal,
            scale=scale,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
        )
        if validate:
            check_offsets(problem, q, k)
        if packed:
            problem = bounded(problem, bounds, causal=causal, window=None)
        chosen = config_for(config, q)
        check_device(q)
        launches = CALLS.keep(key, Launches(partial(_run, problem.at(None, None), chosen), jagged))
    out, lse = launches(*tensors)
    assert out is not None
    assert lse is not None
    return out, lse
