"""Arrays sent to a device keep their values, and kernels see one alignment whatever their lengths are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnbench.models.paged_cache.packing import send


@pytest.mark.parametrize("lengths", [(1, 1), (3, 3), (0, 5), (2, 0, 7), (4,), ()])
def test_arrays_arrive_aligned_to_16_bytes(lengths: tuple[int, ...]) -> None:
    arrays = [np.arange(1, length + 1, dtype=np.int64) << 40 for length in lengths]
    found = send(arrays, torch.device("cpu"))
    assert [one.tolist() for one in found] == [one.tolist() for one in arrays]
    assert all(one.dtype == torch.int64 for one in found)
    assert all(one.storage_offset() * one.element_size() % 16 == 0 for one in found)
