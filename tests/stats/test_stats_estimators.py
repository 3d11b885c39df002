"""The table in `stats.ratio`: rivals of the paired ratio on noise of known kinds."""

import math

import numpy
import pytest

from attnbench.stats import ratio as ratio_module
from attnbench.stats.ratio import paired_ratio
from attnbench.stats.replicates import student_quantile
from attnbench.stats.summary import order_rank

ROUNDS, GROUPS, TICK_US = 60, 300, 0.032


def quantised(rng, micros, noise):
    """Durations whose start falls anywhere between two ticks, read off a timer of 32 ns."""

    def read(times):
        start = rng.random(ROUNDS)
        return TICK_US * (numpy.floor(start + times / TICK_US) - numpy.floor(start))

    base = micros * (1 + 0.01 * rng.random())
    return lambda factor: read(base * factor * (1 + noise * rng.standard_normal(ROUNDS)))


def drifting(rng):
    shared = numpy.exp(numpy.cumsum(0.1 / math.sqrt(ROUNDS) * rng.standard_normal(ROUNDS)))
    return lambda factor: factor * shared * (1 + 0.003 * rng.standard_normal(ROUNDS))


def spoiled(rng, noise, jump, share):
    return lambda factor: factor * (
        1 + noise * rng.standard_normal(ROUNDS) + jump * (rng.random(ROUNDS) < share)
    )  # fmt: skip


STREAMS = {
    "normal, 1 %": (lambda rng: spoiled(rng, 0.01, 0.0, 0.0), 0.0),
    "two peaks 5 % apart, 50/50": (lambda rng: spoiled(rng, 0.003, 0.05, 0.5), 0.0),
    "two peaks 5 % apart, 70/30": (lambda rng: spoiled(rng, 0.003, 0.05, 0.3), 0.0),
    "shared drift of 10 %": (drifting, 0.0),
    "5 % outliers of +50 %": (lambda rng: spoiled(rng, 0.005, 0.5, 0.05), 0.0),
    "32 ns at 5 us, noise 0.1 %": (lambda rng: quantised(rng, 5, 0.001), TICK_US),
    "32 ns at 5 us, noise 0.5 %": (lambda rng: quantised(rng, 5, 0.005), TICK_US),
    "32 ns at 10 us, noise 0.5 %": (lambda rng: quantised(rng, 10, 0.005), TICK_US),
    "32 ns at 25 us, noise 0.3 %": (lambda rng: quantised(rng, 25, 0.003), TICK_US),
}


def ours(first, second, tick):
    found = paired_ratio(dict(enumerate(first.tolist())), dict(enumerate(second.tolist())), tick=tick)
    return math.log(found.ratio), math.log(found.ci_low), math.log(found.ci_high)


def plain(first, second, tick):
    logs = numpy.sort(numpy.log(first / second))
    rank = order_rank(ROUNDS)
    return numpy.median(logs), logs[rank - 1], logs[-rank]


def hodges_lehmann(first, second, tick):
    logs = numpy.log(first / second)
    walsh = numpy.sort((logs[:, None] + logs)[numpy.triu_indices(ROUNDS)] / 2)
    mean, spread = len(walsh) / 2, math.sqrt(ROUNDS * (ROUNDS + 1) * (2 * ROUNDS + 1) / 24)
    rank = math.floor(mean - 1.96 * spread)
    return numpy.median(walsh), walsh[rank - 1], walsh[-rank]


def trimmed(first, second, tick):
    logs = numpy.sort(numpy.log(first / second))
    cut = ROUNDS // 5
    kept = ROUNDS - 2 * cut
    deviation = numpy.clip(logs, logs[cut], logs[-cut - 1]).std(ddof=1)
    half = student_quantile(0.975, kept - 1) * deviation * math.sqrt(ROUNDS) / kept
    mean = logs[cut:-cut].mean()
    return mean, mean - half, mean + half


def of_medians(first, second, tick):
    return math.log(numpy.median(first) / numpy.median(second)), -math.inf, math.inf


RIVALS = {"ours": ours, "median": plain, "Hodges-L.": hodges_lehmann, "trimmed": trimmed, "of medians": of_medians}


def simulate(stream, seed):
    """Root mean square error in % and coverage of each rival."""
    make, tick = STREAMS[stream]
    rng = numpy.random.default_rng(seed)
    errors = {name: [] for name in RIVALS}
    for _ in range(GROUPS):
        truth = 1 + 0.02 * (rng.random() - 0.5)
        times = make(rng)
        first, second = times(truth), times(1.0)
        for name, rival in RIVALS.items():
            errors[name].append(numpy.array(rival(first, second, tick)) - math.log(truth))
    found = {}
    for name, rows in errors.items():
        middle, low, high = numpy.array(rows).T
        found[name] = 100 * math.sqrt((middle**2).mean()), ((low <= 1e-9) & (high >= -1e-9)).mean()
    return found


def table():
    """The rows as the docstring has them; run by hand to renew it."""
    lines = ["    " + f"{'noise':<28}" + "".join(f"{name:<14}" for name in RIVALS)]
    for seed, stream in enumerate(STREAMS):
        cells = (f"{error:.3f}" + ("" if name == "of medians" else f" ({covered:.2f})")
                 for name, (error, covered) in simulate(stream, seed).items())  # fmt: skip
        lines.append("    " + f"{stream:<28}" + "".join(f"{cell:<14}" for cell in cells))
    return "\n".join(line.rstrip() for line in lines)


@pytest.mark.parametrize(("seed", "stream"), list(enumerate(STREAMS)))
def test_the_table_of_the_docstring(seed, stream):
    line = next(line for line in ratio_module.__doc__.splitlines() if line.strip().startswith(stream))
    cells = line.strip()[28:].replace("(", "").replace(")", "").split()
    written = dict(zip(RIVALS, zip(cells[::2], [*cells[1::2], "1"], strict=True), strict=True))
    found = simulate(stream, seed)
    for name, (error, covered) in found.items():
        assert error == pytest.approx(float(written[name][0]), rel=0.1), name
        assert covered == pytest.approx(float(written[name][1]), abs=0.02), name
    best = min(error for error, _ in found.values())
    assert found["ours"][0] <= 1.35 * best
    assert found["ours"][1] >= 0.94


@pytest.mark.parametrize(("micros", "noise"), [(5.5, 0.006), (13.5, 0.004), (25.0, 0.003)])
def test_the_same_kernel_twice_is_within_two_tenths_of_a_percent_or_one_tick(micros, noise):
    rng = numpy.random.default_rng(round(10 * micros))
    worst = 0.0
    for _ in range(12):
        times = quantised(rng, micros, noise)
        first, second = ([*times(1.0), *times(1.0)] for _ in range(2))
        found = paired_ratio(dict(enumerate(first[:100])), dict(enumerate(second[:100])), tick=TICK_US)
        worst = max(worst, abs(found.ratio - 1))
    assert worst <= max(0.002, TICK_US / micros)


@pytest.mark.parametrize("tick", [0.0, TICK_US])
def test_false_alarms_and_a_true_percent(tick):
    rng = numpy.random.default_rng(17)
    alarms, signs = 0, []
    for group in range(512):
        times = quantised(rng, 7, 0.01) if tick else spoiled(rng, 0.01, 0.0, 0.0)
        factor = 1.01 if group < 12 else 1.0
        found = paired_ratio(dict(enumerate(times(factor))), dict(enumerate(times(1.0))), tick=tick)
        if group < 12:
            signs.append(found.ratio > 1)
        else:
            alarms += found.verdict in ("faster", "slower")
    assert signs == [True] * 12
    assert alarms / 500 <= 0.06


if __name__ == "__main__":
    print(table())
