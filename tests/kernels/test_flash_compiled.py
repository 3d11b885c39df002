"""The shipped portable defaults of the flash forward, compiled for the cards they are for: nothing spills, the products
are the tensor cores', and what the space's rules estimate is what comes out.  Those of the Hopper path are compiled by
test_flash_hopper_compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash import forward as flash_forward
from attnbench.kernels.flash.config.defaults import forward_config
from attnbench.kernels.flash.config.forward import HOPPER, parse
from attnbench.kernels.flash.config.space import Shape, registers, shared_bytes
from attnbench.kernels.flash.problem import lse_shape, problem_of

from .aot import NO_OLDEST, Job, compile_with, listed, recorded, tritons

BATCH, HEADS, SEQLEN = 4, 16, 4096
CAUSAL, FULL, WINDOW = {"causal": True}, {}, {"window": (100, 20)}
FEW_TILES = "m64n64w4s3-tma"
"The default of calls whose tiles do not fill the card."
CELLS = {
    "pinned": [
        (90, 64, CAUSAL, False),
        (90, 128, CAUSAL, False),
        (90, 256, CAUSAL, True),
        (90, 128, CAUSAL, False, FEW_TILES),
        (80, 256, CAUSAL, False),
        (100, 256, CAUSAL, False),
    ],
    "3.6": [(90, 128, WINDOW, False), (90, 64, FULL, False, FEW_TILES)],
}
MORE = {
    "pinned": [(80, 64, CAUSAL, False), (100, 128, CAUSAL, False)],
    "3.6": [(90, 64, CAUSAL, True), (90, 256, FULL, False), (80, 128, CAUSAL, False), (100, 64, CAUSAL, False)],
}
"""Card, dim, mask, packed.  With `MORE` each default of sm_90 by both, with other masks by the one than by the other;
each of the other cards by one."""


def job_of(capability: int, dim: int, mask: dict, packed: bool, short: str = "") -> tuple[Job, str]:
    """What the launcher launches, by default or by a short form, and this form."""
    shape = (BATCH * SEQLEN, HEADS, dim) if packed else (BATCH, SEQLEN, HEADS, dim)
    q, k, v, out = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for _ in range(4))
    offsets = {"cu_seqlens_q": torch.empty(BATCH + 1, dtype=torch.int32, device="meta"), "max_seqlen_q": SEQLEN}
    problem = problem_of(q, k, v, **mask, **(offsets if packed else {}))
    default = forward_config((capability // 10, 0), 2, dim, SEQLEN, right=problem.right is not None)
    config = parse(short) if short else default
    with recorded(flash_forward, "flash_forward", capability=capability) as jobs:
        flash_forward.launch_forward(q, k, v, out, torch.empty(lse_shape(q, problem), device="meta"), problem, config)
    (job,) = jobs
    label = f"sm_{capability} d{dim} {' '.join(mask) or 'full'}{' packed' * packed} {config.short}"
    return replace(job, label=label), config.short


def faults(job: Job, short: str, dim: int, one) -> list[str]:
    """What of a compiled default is not as it should be."""
    card = (job.capability // 10, 0)
    shape, config = Shape(dim=dim, dim_v=dim, capability=card), parse(short)
    wrong = [f"{one.spills} spills"] * (one.spills > 0) + ["serialized"] * one.serialized
    wrong += ["no tensor core"] * (one.tensor_core == 0)
    wrong += [f"{one.shared} bytes of shared memory"] * (one.shared > shape.shared_bytes)
    if card == (9, 0):
        wrong += ["products of single warps"] * (one.sass["HGMMA"] != one.tensor_core)
        wrong += ["no tensor map"] * (one.sass.get("UTMALDG", 0) == 0)
        # Weights that went through shared memory would take as much of it as they do.
        wrong += [f"{one.shared} bytes of shared memory, not {shared_bytes(config, shape)}"] * (
            not 0 <= one.shared - shared_bytes(config, shape) <= 2048
        )
        # ptxas takes more where there is more to have; less than the sums of a tile it cannot.
        wrong += [f"{one.registers} registers, not {registers(config, shape)}"] * (
            not -40 <= one.registers - registers(config, shape) <= 48
        )
    return wrong


# One test compiles all: a fixture would be made anew by each worker that runs tests of this file.
@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_the_defaults_spill_nothing_and_use_the_tensor_cores(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    made = [(*job_of(*cell), cell[1]) for cell in listed(CELLS, MORE)[version]]
    found = compile_with({version: tritons()[version]}, [job for job, _, _ in made])[version]
    assert not {job.label: wrong for job, short, dim in made if (wrong := faults(job, short, dim, found[job.label]))}


def test_the_order_that_sm_90_refuses_writes_what_a_product_in_flight_reads(monkeypatch):
    """Why it is refused: a card with Triton 3.6 gave NaN."""
    if "3.6" not in tritons():
        pytest.skip(NO_OLDEST)
    monkeypatch.setattr(flash_forward, "ahead_fault", lambda config, capability: None)
    job, _ = job_of(90, 128, CAUSAL, False, "m128n64w8s3-ahead")
    with pytest.raises(RuntimeError, match=r"written while read: .*'R\d+': '[0-9a-f]+: (FMNMX|VIADD|IADD3|FFMA)"):
        compile_with({"3.6": tritons()["3.6"]}, [job])


def test_nothing_is_compiled_anew_for_another_batch_head_or_window():
    counted = {"lse_batch", "lse_head", "left", "right", "heads", "pairs", "tiles", "group"}
    params = {param.name: param for param in flash_forward.flash_forward.params}
    assert all(params[name].do_not_specialize for name in counted)


def test_every_card_precision_dim_and_length_has_a_default():
    for major in (0, 8, 9, 10, 12):
        for item_bytes in (2, 4):
            for dim in (1, 64, 65, 256):
                for right in (False, True):
                    for hopper in (False, True):
                        config = forward_config((major, 0), item_bytes, dim, 1 << 20, right=right, hopper=hopper)
                        assert (config.loads == "tma") == (major in (9, 10) and item_bytes == 2)
                        assert (config.order in HOPPER) == (major == 9 and item_bytes == 2 and hopper)
