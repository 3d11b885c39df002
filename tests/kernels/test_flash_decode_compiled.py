"""The kernels for few queries, compiled for the cards of their defaults: nothing spills, the products are the tensor
cores', so many tiles are in flight as the estimate says, and another batch, length or window compiles nothing anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash import decode
from attnbench.kernels.flash.config.decode import decode_config
from attnbench.kernels.flash.config.forward import parse
from attnbench.kernels.flash.config.space import Shape, shared_bytes
from attnbench.kernels.flash.portable.decode import COUNTS, decode_attend, decode_combine
from attnbench.kernels.flash.problem import lse_shape, problem_of

from .aot import NO_OLDEST, compile_with, listed, recorded, tritons

BATCH, HEADS, HEADS_KV, KEYS = 4, 32, 8, 8192
CELLS = {
    "pinned": [
        (90, 64, 1, True, {"causal": True}),
        (90, 128, 1, False, {"causal": True}),
        (90, 128, 16, False, {"window": (1000, 0)}),
        (90, 256, 8, True, {"causal": True}),
        (80, 128, 8, False, {}),
        (100, 128, 16, False, {"causal": True}),
    ],
    "3.6": [(90, 128, 16, True, {"causal": True}), (90, 256, 16, False, {})],
}
MORE = {"3.6": [(90, 128, 1, True, {"causal": True}), (80, 256, 16, False, {"causal": True}), (100, 64, 16, False, {})]}
"""Card, dim, queries, packed, mask: of few queries a default of each number of rows, by one Triton or the other."""


def jobs_of(capability, dim, queries, packed, mask):
    """What the launcher launches by default, of a card of 132 SMs, and the configuration."""
    rows = BATCH if packed else 1
    shapes = [(rows * queries, HEADS), (rows * KEYS, HEADS_KV), (rows * KEYS, HEADS_KV), (rows * queries, HEADS)]
    lead = () if packed else (BATCH,)
    q, k, v, out = (torch.empty((*lead, *shape, dim), dtype=torch.bfloat16, device="meta") for shape in shapes)
    offsets = {
        f"cu_seqlens_{name}": torch.empty(BATCH + 1, dtype=torch.int32, device="meta") for name in "qk" if packed
    } | ({"max_seqlen_q": queries, "max_seqlen_k": KEYS} if packed else {})
    problem = problem_of(q, k, v, **mask, **offsets)
    config = decode_config((capability // 10, 0), 2, dim, queries * HEADS // HEADS_KV, described=not packed)
    lse = torch.empty(lse_shape(q, problem), device="meta")
    with (
        recorded(decode, "decode_attend", "decode_combine", capability=capability) as jobs,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(decode, "processors", lambda x: 132)
        patch.setattr(decode, "capability_of", lambda x: divmod(capability, 10))
        decode.launch_decode(q, k, v, out, lse, problem, config)
    label = f"sm_{capability} d{dim} q{queries} {' '.join(mask) or 'full'}{' packed' * packed} {config.short}"
    return [replace(job, label=f"{job.label.split()[0]} {label}") for job in jobs], config


@pytest.mark.parametrize("version", ["pinned", "3.6"])
def test_the_defaults_spill_nothing_and_have_room_for_the_programs_that_share_an_sm(version):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    made = [(*jobs_of(*cell), cell) for cell in listed(CELLS, MORE)[version]]
    found = compile_with({version: tritons()[version]}, [job for jobs, _, _ in made for job in jobs])[version]
    for (attend, combine), config, (capability, dim, _, packed, _) in made:
        one, shape = found[attend.label], Shape(dim=dim, dim_v=dim, capability=(capability // 10, capability % 10))
        assert (one.spills, found[combine.label].spills, one.serialized) == (0, 0, False), attend.label
        assert one.tensor_core > 0
        assert abs(one.shared - shared_bytes(config, shape)) <= 2048, attend.label
        assert config.sharers * one.registers * config.threads <= 65536, attend.label
        assert config.sharers * (one.shared + 1024) <= shape.shared_bytes + 1024, attend.label
        waits, dependent = found[combine.label], capability >= 90
        assert (one.sass.get("PREEXIT", 0), waits.sass.get("ACQBULK", 0)) == (dependent, dependent), attend.label
        # What is read before is lengths of packed sequences, which no kernel of the call writes.
        assert not waits.before_wait.keys() - ({"LDG"} if packed else set()), attend.label
        copies = one.sass.get("UTMALDG", 0) if config.loads == "tma" else one.sass.get("LDGSTS", 0)
        assert copies > 0, attend.label


def test_nothing_is_compiled_anew_for_another_batch_length_or_window():
    for kernel in (decode_attend, decode_combine):
        params = {param.name: param for param in kernel.params}
        assert all(params[name].do_not_specialize for name in COUNTS)
    assert {"seqlen_q", "seqlen_k", "batch", "repeats", "left", "right"} <= set(COUNTS)


def test_words_that_configurations_share_are_compiled_alike():
    """How many programs share the keys, and an SM, is not compiled in."""
    cell = (90, 128, 1, False, {})
    (attend, combine), config = jobs_of(*cell)
    assert parse(config.short) == config
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "programs_of", lambda *_: 7)
        fewer = jobs_of(*cell)[0]
    assert [(job.arguments, job.constants) for job in fewer] == [
        (job.arguments, job.constants) for job in (attend, combine)
    ]
