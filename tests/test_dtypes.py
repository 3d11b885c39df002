"""The table of precisions agrees with torch's formats and the rows of the data sheets."""

from __future__ import annotations

import pytest
import torch

from attnbench.backends.dense import ALL_DTYPES
from attnbench.dtypes import DTYPES, torch_dtype
from attnbench.machine.ceilings import matmul_tflops
from attnbench.machine.device import CPU
from attnbench.machine.peaks import ROWS, peak
from attnbench.workloads.attention.case import ACCEPTED_DTYPES


@pytest.mark.parametrize("name", DTYPES)
def test_a_row_says_what_torch_says(name):
    row = DTYPES[name]
    assert row.name == name
    assert row.bytes == torch_dtype(name).itemsize
    assert row.peak in ROWS


@pytest.mark.parametrize("name", DTYPES)
def test_results_have_a_rounding_step_and_are_never_narrower_than_the_inputs(name):
    results = DTYPES[name].results
    assert torch.finfo(torch_dtype(results)).eps <= 2**-7
    assert DTYPES[results].results == results
    assert DTYPES[results].bytes >= DTYPES[name].bytes


def test_8_bits_are_in_the_table_with_wide_results():
    assert {name for name, row in DTYPES.items() if row.bytes == 1} == {"e4m3", "int8"}
    assert {DTYPES[name].results for name in ("e4m3", "int8")} == {"bf16"}


def test_what_families_accept_are_rows_of_the_table():
    assert set(ACCEPTED_DTYPES) <= set(DTYPES)
    assert ALL_DTYPES == ACCEPTED_DTYPES


def test_the_data_sheets_peak_of_a_case_is_that_of_its_format():
    assert peak("NVIDIA H200", "e4m3") == peak("NVIDIA H200", "fp8")
    assert peak("NVIDIA H200", "int8").tflops == 1979.0


def test_a_format_that_torch_does_not_multiply_has_no_measured_ceiling():
    assert [matmul_tflops(CPU, name) for name in ("e4m3", "int8", "none")] == [None, None, None]
