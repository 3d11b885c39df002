"""``hstu-meta-triton``: Meta's Triton kernels for HSTU attention, from a checkout of generative-recommenders.

They are on no package index: ``--path`` or ``ATTNBENCH_GENERATIVE_RECOMMENDERS`` names the folder of the checkout, or
the package is on the Python path.  Their autotuner runs in the first call, once for each length.  Sequences are
not sorted by length, and a call casts and copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnbench.backends.base import Launch, Machine
from attnbench.backends.checkouts import Checkout
from attnbench.backends.hstu import HstuBackend, Operands

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.hstu.case import HstuCase
    from attnbench.workloads.hstu.inputs import HstuInputs

CHECKOUT = Checkout(
    "hstu-meta-triton",
    "ATTNBENCH_GENERATIVE_RECOMMENDERS",
    "generative_recommenders.ops.triton.triton_hstu_attention",
    "generative-recommenders",
)


class HstuMetaTriton(HstuBackend):
    """Causal; outputs are divided by the maximal sequence length."""

    name = CHECKOUT.who
    title = "HSTU, Meta generative-recommenders (Triton)"
    install = f"{CHECKOUT.variable}=folder of a checkout of meta-recsys/generative-recommenders"
    tested = "NVIDIA H200, torch 2.11"
    module = CHECKOUT.module
    checkout = CHECKOUT.variable
    distribution = CHECKOUT.package
    compiles = True

    def probe(self) -> None:
        """Check the folder, the packages its files import, and the Python path, without importing anything.

        Raises:
            Unavailable: one of them is missing.
        """
        CHECKOUT.probe(self.install)

    def check(self, case: HstuCase, machine: Machine) -> None:
        """Refuse cases that the library does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        held = all(shape.length >= case.contextual_len + shape.targets for shape in case.sequences)
        self.take(
            case,
            ("causal", case.causal, "true"),
            ("delta_q", case.delta_q is None, "none"),
            ("scaling_seqlen", case.scaling_seqlen == case.seqlen, f"seqlen={case.seqlen}"),
            ("lengths", held, "sequences that hold contextual_len and their targets"),
        )

    @contextmanager
    def session(self, case: HstuCase, inputs: HstuInputs) -> Iterator[Launch]:
        """Use the function behind the library's dispatcher, without TMA, which is its own default."""
        module, common = CHECKOUT.load(CHECKOUT.module, f"{CHECKOUT.package}.common")
        attention = module.triton_hstu_mha
        if (by_length := getattr(common, "set_use_runtime_max_seq_len", None)) is not None:
            by_length(True)  # otherwise the first length is tuned for all
        offsets, targets, reach = inputs.seq_offsets, inputs.num_targets, case.max_attn_len or 0

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = attention(
                N=case.seqlen,
                alpha=case.alpha,
                q=q,
                k=k,
                v=v,
                seq_offsets=offsets,
                num_targets=targets,
                max_attn_len=reach,
                contextual_seq_len=case.contextual_len,
                sort_by_length=False,
                enable_tma=False,
            )
            return out

        yield Operands(case, inputs).launch(attend, notes=("enable_tma=False, sort_by_length=False",))
