import pytest

from attnbench.presentation import figures
from made_up_run import make_time


@pytest.mark.parametrize(
    ("value", "half", "shown", "margin"),
    [
        (3.67212, 0.0142, "3.672", "±0.014"),
        (3.67212, 0.0312, "3.67", "±0.03"),
        (8.51234, 0.0051, "8.512", "±0.005"),
        (12345.6, 78.0, "12346", "±78"),
        (701.36, 1.2, "701.4", "±1.2"),
        (0.50153, 0.0013, "0.5015", "±0.0013"),
        (1.0, 0.00004, "1.00000", "±0.00004"),
        (8.512, 0.0, "8.512", "±0.000"),
        (8.512, None, "8.51", ""),
        (168.0, None, "168", ""),
        (0.00123, None, "0.00123", ""),
        (1234567.0, None, "1234567", ""),
        (0.0, None, "0", ""),
        (None, None, "", ""),
    ],
)
def test_a_figure_has_the_digits_its_interval_bears(value, half, shown, margin):
    assert figures.measured(value, half) == shown
    assert figures.margin(value, half) == margin


@pytest.mark.parametrize(
    ("times", "unit"),
    [([0.0055, 3.2], "µs"), ([0.49, 900.0], "µs"), ([0.5], "ms"), ([999.0, 5000.0], "ms"), ([1000.0], "s"), ([], "ms")],
)
def test_a_column_has_the_unit_of_its_smallest_time(times, unit):
    assert figures.unit_for(times).name == unit


def test_the_longer_arm_of_an_interval_is_shown():
    time = make_time([1.0] * 7, median_ms=2.0, ci_low_ms=1.9, ci_high_ms=2.4)
    assert figures.time_half(time) == pytest.approx(0.4)
    assert figures.time_relative(time) == pytest.approx(0.2)
    assert figures.time_half(make_time([1.0] * 3)) is None


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (34560, "34.6 kB"),
        (999_600, "1 MB"),
        (1_146_880, "1.15 MB"),
        (22_600_000_000, "22.6 GB"),
        (5 * 10**15, "5e+03 TB"),
    ],
)
def test_a_size_has_the_unit_that_leaves_few_digits(count, said):
    assert figures.size(count) == said
