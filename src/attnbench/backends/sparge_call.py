"""Base class of SpargeAttn's two functions; the library predicts which blocks matter, and is for inference only.

A configuration ``sim0-cdf0.7-pv50`` sets the thresholds of the prediction: `simthreshd1` of the similarity gate,
`cdfthreshd` of the share of softmax mass, `pvthreshd` of the skipped products P V.  ``topk0.5`` is the entry point that
the library recommends, for a share of the blocks; its gate is -0.1 unless another is given.  **On random data the
defaults (sim 0.6, cdf 0.98) skip nothing**: no block is similar to itself, so every row is dense.

The predicted map is internal to the library: during the call a wrapper around its prediction function keeps
the result.  All kernels run on the default stream, so they are never captured.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import Budget, Config, Launch, Machine, require
from attnbench.backends.replaced import replaced
from attnbench.backends.sparse import SparseBackend, SparseLimits, map_of_lists, resized
from attnbench.errors import UsageError, refusal

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.sparse.case import SparseCase
    from attnbench.workloads.sparse.inputs import SparseInputs

_NUMBER = r"(-?\d+(?:\.\d+)?)"
FORM = re.compile(rf"sim{_NUMBER}-(cdf|topk){_NUMBER}-pv{_NUMBER}", re.ASCII)
ACCEPTED = "simX-cdfY-pvZ, simX-topkY-pvZ or topkY, X from -1 to 1, Y from 0 to 1, such as sim0-cdf0.7-pv50"
DEFAULTS = {"simthreshd1": 0.6, "cdfthreshd": 0.98, "pvthreshd": 50.0}
SHARES = {"cdf": "cdfthreshd", "topk": "topk"}
PREDICTS = "get_block_map_meansim_fuse_quant"
SWEEP = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
"cdfthreshd of the seed's sweep, with simthreshd1 0 and pvthreshd 50."


class SpargeBackend(SparseBackend):
    """A backend of one of the library's functions."""

    install = (
        "git clone https://github.com/thu-ml/SpargeAttn.git && cd SpargeAttn && pip install einops ninja && "
        "MAX_JOBS={max_jobs} pip install --no-build-isolation ."
    )
    module = "spas_sage_attn.core"
    distribution = "spas_sage_attn"
    variant = "chosen"
    follows = False
    functions: ClassVar[tuple[str, str]]
    "predict and attend: by a share of softmax mass, by a share of the blocks"
    limits = SparseLimits(headdims=(64, 128), causal=True, capability=(8, 0), capability_below=(10, 0))

    def configs(self, case: SparseCase) -> Iterable[Config]:
        """Return the library's defaults, and the sweep of the seed document."""
        thresholds = (0.6, 0.98), *((0, cdf) for cdf in SWEEP)
        return [self.config_of(f"sim{sim:g}-cdf{cdf:g}-pv50", case) for sim, cdf in thresholds]

    def config_of(self, short: str, case: SparseCase) -> Config:
        """Accept any thresholds.

        Raises:
            UsageError: they cannot be parsed or are out of range.
        """
        match = FORM.fullmatch(f"sim-0.1-{short}-pv50" if short.startswith("topk") else short)
        if match:
            values = {"simthreshd1": float(match[1]), SHARES[match[2]]: float(match[3]), "pvthreshd": float(match[4])}
            sim, share, products = values.values()
        if not match or not (-1 <= sim <= 1 and 0 <= share <= 1 and products >= 0):
            raise UsageError(refusal(self.name, "config", short, "cannot be read", ACCEPTED))
        return Config(short, values)

    def check(self, case: SparseCase, machine: Machine) -> None:
        """Refuse cases that the library does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        native = self.own_block(machine)
        divides = all(size <= own for size, own in zip(case.block_shape, native, strict=True))
        fits = divides or case.widen or self.variant_of(case) != "chosen"
        accepted = f"blocks that divide {native[0]}x{native[1]}, such as 64x64"
        require(
            self.name,
            (case.seqlen >= 128, "seqlen", case.seqlen, "is too short", "at least 128"),
            (fits, "block", case.block, "cannot say the map that it predicts", accepted),
        )

    def own_block(self, machine: Machine) -> tuple[int, int]:
        """Return the number of queries and keys of the library's blocks on a card."""
        return 128, 64

    def budget(self, case: SparseCase) -> Budget:
        """Budget for queries and keys in int8 with a scale per block, P V in fp16.

        Emulated against fp64 at 4096 rows the relative L1 is 0.013 on normal values and 0.054 on outliers.
        """
        return Budget(relative=0.5, rel_l1=0.065, head_rel_l1=0.08)

    @contextmanager
    def session(self, case: SparseCase, inputs: SparseInputs) -> Iterator[Launch]:
        """Use tensors [B, H, S, D], which the library calls HND."""
        core = importlib.import_module("spas_sage_attn.core")
        yield self.predicting(case, inputs, core)

    def predicting(self, case: SparseCase, inputs: SparseInputs, core: Any) -> Launch:
        """Return a launch that predicts its map in every call, with the library's module `core`."""
        given = dict(self.config.values) if self.config else dict(DEFAULTS)
        native = self.own_block(machine_of(inputs))
        made: dict[str, Tensor] = {}
        function, rule = getattr(core, self.functions["topk" in given]), getattr(core, PREDICTS)

        def predict(*arguments: Any, **options: Any) -> Any:
            """Call the library's function; keep its lists of blocks: differences of indices, and counts."""
            found = rule(*arguments, **options)
            made["deltas"], made["counts"] = found[0], found[1]
            return found

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with replaced(core, PREDICTS, predict):
                out: Tensor = function(q, k, v, is_causal=case.causal, scale=case.scale, tensor_layout="HND", **given)
            return out

        def chosen() -> dict[str, Tensor]:
            columns = -(-case.seqlen_k // native[1])
            blocks = map_of_lists(made["counts"], made["deltas"].cumsum(-1), columns)
            return {"block_map": resized(blocks, case, native, case.block_shape)}

        words = ", ".join(f"{name} {value:g}" for name, value in given.items())
        notes = (f"map predicted by SpargeAttn: {words}",)
        return self.launch(case, inputs, attend, choices=chosen, capturable=False, notes=notes)


def machine_of(inputs: SparseInputs) -> Machine:
    """Return the machine of a session's inputs."""
    import torch

    if not inputs.q.is_cuda:
        return Machine("cpu")
    return Machine("cuda", torch.cuda.get_device_capability(inputs.q.device))
