"""What every test may rely on: no GPU test runs without a GPU, and nothing is written outside tmp_path."""

from __future__ import annotations

import os

import pytest

# Triton 3.9 warns, once a process, about a default that 3.10 will change; say which one is meant.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
