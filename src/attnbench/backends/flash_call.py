"""How the packages of the FlashAttention family are called; they differ in a name and a few limits.

Each has ``flash_attn_func`` on [B, S, H, D] and ``flash_attn_varlen_func`` on packed [T, H, D], aligns
causal and window masks to the bottom right, and returns 0 for rows without a visible key.  Arguments are passed by
name, and only if needed, because their order and number differ between versions.
Depending on the build, the output is returned alone or in a tuple.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import Config, Launch, module_exists
from attnbench.backends.dense import DenseBackend
from attnbench.backends.differentiable import Attention, differentiable
from attnbench.backends.mask import Mask
from attnbench.errors import Unavailable, Unsupported, refusal

if TYPE_CHECKING:
    from torch import Tensor, device

    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs


class FlashBackend(DenseBackend):
    """One package of the family."""

    modules: ClassVar[tuple[str, ...]]
    "modules that may contain the two functions; the first found is used"
    unbounded: ClassVar[int | None] = -1
    "the package's value for a window without an end"
    further: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    "configurations by name, each with its arguments"

    def probe(self) -> None:
        """Check that the package is installed, without importing it.

        Raises:
            Unavailable: it is not installed.
        """
        if not any(map(module_exists, self.modules)):
            raise Unavailable(f"{self.name}: module={self.modules[0]} is not installed; {self.install}")

    def configs(self, case: AttentionCase) -> Iterable[Config]:
        """Return the configurations that the package offers its callers."""
        return tuple(map(Config, self.further))

    def attend(self, case: AttentionCase, device: device) -> Attention:
        """See `Backend.attend`."""
        return self._bind(case, None)

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Use tensors in the workload's own layout, dense or packed."""
        yield differentiable(self._bind(case, inputs), case, inputs)

    def _bind(self, case: AttentionCase, inputs: AttentionInputs | None) -> Attention:
        """Return the package's function for a case; packed cases need `inputs`."""
        module: Any = importlib.import_module(next(filter(module_exists, self.modules)))
        mask = Mask.of(case)
        function = module.flash_attn_varlen_func if case.packed else module.flash_attn_func
        arguments: dict[str, Any] = {"softmax_scale": case.scale, "causal": mask.causal}
        if self.config:
            arguments |= self.further[self.config.short]
        if case.packed:
            arguments |= {
                name: getattr(inputs, name) for name in ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
            }
        if mask.window:
            arguments["window_size"] = tuple(
                self.unbounded if bound == -1 else bound for bound in (mask.left, mask.right)
            )
            _check_argument(self.name, function, "window_size", case.window)
        return _first(function, arguments)


def _first(function: Callable[..., Any], arguments: dict[str, Any]) -> Attention:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result = function(q, k, v, **arguments)
        return result[0] if isinstance(result, tuple) else result

    return attend


def _check_argument(who: str, function: Callable[..., Any], name: str, value: object) -> None:
    if name not in inspect.signature(function).parameters:
        raise Unsupported(refusal(who, "window", value, "is not an argument of this version", "none"))
