"""The harness's own kernels compile without a GPU for every supported GPU, and do not spill."""

from __future__ import annotations

import re

import pytest

triton = pytest.importorskip("triton")

from attnbench.measure import probe  # noqa: E402 (after importorskip)

KERNELS = {
    "marker": (
        probe.attnbench_marker,
        {"stamps_ptr": "*i64", "ticket_ptr": "*i32"},
        {"NUM_SMS": 132, "MAX_SLOTS": 1024},
    ),
    "flush": (
        probe.attnbench_flush,
        {"buffer_ptr": "*i32", "sink_ptr": "*i32", "num_blocks": "i32"},
        {"BLOCK": probe.FLUSH_BLOCK},
    ),
}


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("name", KERNELS)
def test_it_compiles(name: str, capability: int) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, arguments, constants = KERNELS[name]
    signature = arguments | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, constexprs=constants)
    ptx = triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["ptx"]
    assert re.search(rf"\.target sm_{capability}", ptx)
    if name == "marker":
        assert "%clock64" in ptx
        assert "%globaltimer" in ptx
    else:
        assert "ld.global" in ptx
    assert "st.local" not in ptx
