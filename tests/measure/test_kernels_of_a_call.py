"""The kernels of a call in a timing: once by name, however often they are launched."""

from __future__ import annotations

from attnbench.measure.sampling import _kernels
from attnbench.measure.timer import Reading


def test_launches_of_one_kernel_are_one_entry():
    layers = ("embed", *("norm", "product", "attention", "product") * 30)
    readings = [Reading(1.0, kernels=layers, kernel_ms=tuple(s * (1 + i % 4) for i in range(121))) for s in (1, 5, 2)]
    found = _kernels(readings)
    assert list(found) == ["embed", "norm", "product", "attention"]
    assert [len(times) for times in found.values()] == [1, 30, 60, 30]
    assert found["embed"] == [2]  # the median of 1, 5 and 2
    assert found["attention"] == [2 * 4] * 30
    assert sum(map(sum, found.values())) == 2 * sum(1 + i % 4 for i in range(121))


def test_readings_with_other_kernels_count_not_and_none_is_none():
    odd = Reading(1.0, kernels=("a",), kernel_ms=(9.0,))
    first = Reading(1.0, kernels=("a", "b"), kernel_ms=(1.0, 2.0))
    assert _kernels([first, odd, odd]) == {"a": [1.0], "b": [2.0]}
    assert _kernels([]) == _kernels([Reading(1.0)]) == {}
