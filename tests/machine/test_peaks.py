"""Data-sheet peaks: a GPU has its own or none."""

import pytest

from attnbench.machine.peaks import ROWS, Peak, find, peak, rows

LISTED = [(name, row) for row in rows() for name in row["names"]]


def test_the_h200():
    assert peak("NVIDIA H200", "bf16") == Peak(989.5, 4.8, "NVIDIA H200 data sheet, SXM column")
    assert peak("NVIDIA H200", "fp8").tflops == 1979.0


@pytest.mark.parametrize(
    ("name", "dtype", "tflops", "tbps"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5, 3.35),
        ("NVIDIA H100 PCIe", "bf16", 756.5, 2.0),
        ("NVIDIA H100 NVL", "fp16", 835.5, 3.9),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156.0, 2.039),
        ("NVIDIA A100-PCIE-40GB", "fp32", 19.5, 1.555),
        ("NVIDIA L40S", "fp8", 733.0, 0.864),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2, 1.008),
        ("NVIDIA GeForce RTX 3090", "bf16", 71.0, 0.936),
        ("NVIDIA GeForce RTX 5090", "fp8", 419.0, 1.792),
        ("NVIDIA B200", "bf16", 2250.0, 7.7),
        ("Tesla V100-SXM2-32GB", "fp16", 125.0, 0.9),
    ],
)
def test_published_figures(name, dtype, tflops, tbps):
    found = peak(name, dtype)
    assert (found.tflops, found.memory_tbps) == (tflops, tbps)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100",
        "NVIDIA H100 80GB HBM2e",
        "NVIDIA H800",
        "NVIDIA H20",
        "NVIDIA A10G",
        "NVIDIA L40G",
        "NVIDIA L400",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "NVIDIA H200 MIG 1g.18gb",
        "AMD Instinct MI300X",
        "GRID A100X-40C",
        "H",
        "",
    ],
)
def test_an_unlisted_card_has_no_peak(name):
    assert peak(name, "bf16") is None


@pytest.mark.parametrize(("name", "row"), LISTED, ids=[name for name, _ in LISTED])
def test_each_name_is_matched_by_its_own_row_alone(name, row):
    assert find(name, rows()) is row


def test_two_rows_for_a_name_are_a_mistake():
    listed = [{"pattern": "H.00"}, {"pattern": "H200"}]
    with pytest.raises(ValueError, match=r"gpu=NVIDIA H200 is ambiguous; .*'H.00' and 'H200' do"):
        find("NVIDIA H200", listed)


def test_a_card_without_the_units_has_no_rate_but_its_bandwidth():
    found = peak("Tesla V100-SXM2-16GB", "bf16")
    assert (found.tflops, found.memory_tbps) == (None, 0.9)


def test_an_unknown_dtype_is_a_mistake():
    with pytest.raises(ValueError, match="dtype=bfloat16 is not known; one of fp32, fp16"):
        peak("NVIDIA H200", "bfloat16")


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["pattern"])
def test_every_row_is_dense_sourced_and_in_order(row):
    """Half the width never runs slower, and a figure with sparsity would break the ratio."""
    assert row["source"]
    assert set(row) <= {"pattern", "names", "source", "memory_tbps", *ROWS}
    assert row.get("fp8", row["fp16"]) >= row["fp16"] >= row.get("tf32", 0) >= row["fp32"] * ("tf32" in row)
    assert row.get("bf16", row["fp16"]) == row["fp16"]
    if "tf32" in row:
        assert row["fp16"] / row["tf32"] == pytest.approx(2, rel=0.05)
    if "fp8" in row:
        assert row["fp8"] / row["fp16"] == pytest.approx(2, rel=0.03)
