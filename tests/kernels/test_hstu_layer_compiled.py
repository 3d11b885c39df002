"""The kernels of an HSTU layer and of pages, compiled for the cards they are for: nothing spills."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from .aot import NO_OLDEST, Job, compile_with, tritons

MODULE = "attnbench.kernels.hstu.layer.portable"
ARGUMENTS = {
    "hstu_embed": {
        "ids_ptr": "*i32:16",
        "positions_ptr": "*i32:16",
        "table_ptr": "*bf16:16",
        "places_ptr": "*bf16:16",
        "out_ptr": "*bf16:16",
        "scale": "fp32",
    },
    "hstu_gate": {
        "a_ptr": "*bf16:16",
        "u_ptr": "*bf16:16",
        "weight_ptr": "*bf16:16",
        "bias_ptr": "*bf16:16",
        "out_ptr": "*bf16:16",
        "count_ptr": "*i32",
        "u_row": "i32:16",
        "eps": "fp32",
        "parts": "i32",
        "scale": "fp32",
    },
    "hstu_norm": {
        "x_ptr": "*bf16:16",
        "weight_ptr": "*bf16:16",
        "bias_ptr": "*bf16:16",
        "out_ptr": "*bf16:16",
        "eps": "fp32",
    },
    "hstu_pick": {"x_ptr": "*bf16:16", "rows_ptr": "*i32:16", "out_ptr": "*bf16:16", "eps": "fp32"},
}

FORMS = [{"WHOLE": whole, "COUNTED": whole, "SPLIT": split} for whole in (True, False) for split in (False, True)]
"Of the gate."


def jobs_of(capability):
    found = []
    for name, arguments in ARGUMENTS.items():
        for forms in FORMS if name == "hstu_gate" else ({},):
            split = forms.get("SPLIT", False)
            given = arguments | ({"a_ptr": "*fp32:16"} if split else {})
            for dim, warps in ((512, 2), (1024, 4)):
                constants = {"DIM": dim, "BLOCK": dim} | forms
                constants |= {"SHUFFLED": split and capability >= 90, "AT_ONCE": 16} if forms else {}
                label = f"{name} {dim} {' '.join(f'{word}={value}' for word, value in forms.items())}"
                found.append(Job(label, f"{MODULE}:{name}", given, constants, capability, warps))
    tower = dict.fromkeys(("x_ptr", "weight_ptr", "bias_ptr", "out_ptr"), "*bf16:16") | {"rows": "i32"}
    for before, after in ((128, 10), (10, 1), (512, 8)):
        constants = {"IN": before, "OUT": after, "BLOCK": 32, "BLOCK_OUT": 16, "BLOCK_IN": 128 if before > 10 else 16}
        label = f"tower {before} {after}"
        found.append(Job(label, f"{MODULE}:hstu_tower", tower, constants, capability, 4))
    found.append(
        Job(
            "silu",
            f"{MODULE}:hstu_silu",
            {"x_ptr": "*bf16:16", "row_stride": "i32:16", "columns": "i32:16"},
            {"BLOCK": 1024},
            capability,
            4,
        )
    )
    found.append(
        Job(
            "copy",
            "attnbench.kernels.hstu.pages.portable:hstu_copy_pages",
            {
                "source_ptr": "*i64:16",
                "target_ptr": "*i64:16",
                "from_ptr": "*i64:16",
                "to_ptr": "*i64:16",
                "pages": "i32",
                "words": "i32:16",
                "source_stride": "i32:16",
                "target_stride": "i32:16",
            },
            {"BLOCK": 2048},
            capability,
            8,
        )
    )
    return found


# Every kernel by both Tritons, and for both cards: they multiply nothing, and a card changes little.
@pytest.mark.parametrize(("version", "capability"), [("pinned", 80), ("3.6", 90)])
def test_a_row_stays_in_registers(version, capability):
    if version not in tritons():
        pytest.skip(NO_OLDEST)
    found = compile_with({version: tritons()[version]}, jobs_of(capability))[version]
    assert len(found) == 19
    for label, one in found.items():
        # Parts in flight: sixteen of eight numbers a thread, and room to put them in order.
        registers = 168 if "SPLIT=True" in label else 96 if label.startswith("tower") else 64
        shared = 8192 if "SPLIT=True" in label or label.startswith("tower") else 1024
        assert one.spills == 0, label
        assert one.registers <= registers, (label, one.registers)
        assert one.shared <= shared, (label, one.shared)


def test_nothing_is_compiled_for_a_cpu():
    from attnbench.kernels.hstu.layer.api import pick

    with pytest.raises(ValueError, match=r"hstu_pick: x.device=cpu has no compiled kernels; a CUDA device"):
        pick(torch.ones(3, 4), torch.zeros(3, dtype=torch.int32))
