"""The same on a GPU: kernels outside the sample, on other streams, and with device-only timers."""

from __future__ import annotations

import os
import re

import pytest
from test_cheats import BACKENDS, CLASS, COMPUTES, LATE, LEFT, NEW_DATA, UNTIMED, WRONG, carried_out, ended, verdict

from attnbench.backends.registry import resolve

pytestmark = pytest.mark.gpu

CASE = {"batch": 2, "seqlen": 2048, "nheads": 16, "headdim": 64, "causal": True, "dtype": "bf16"}
HONEST = ("honest-steps", "honest-views", "on-side-stream", "replays-a-graph", "waits-in-reload", "sdpa-flash", "eager")
ORDER = r"out of order with its stream: .*|out: unfinished work.*|with its inputs overwritten after the call: .*"
NOTHING = r".*launched nothing on the device.*|cupti: .* launches have no kernel record.*"

EXPECTED = {
    "future": f"{LATE}|{NOTHING}|{ORDER}|{WRONG}|{NEW_DATA}",
    "in-outputs": f"{COMPUTES.format('outputs')}|{LATE}|{NOTHING}",
    "future-of-reload": f"{LEFT}|{NEW_DATA}|{ORDER}|{WRONG}|{NOTHING}",
    "when-read": CLASS,
    "in-reset": f".*{WRONG}|{NOTHING}",
    "in-reload": f"{COMPUTES.format('reload')}|{UNTIMED.format('reload')}",
    "by-dirty-flag": NEW_DATA,
    "by-pointer": WRONG,
    "by-version": NEW_DATA,
    "by-version-of-views": WRONG,
    "slow-for-two-calls": NEW_DATA,
    "when-asked-for": f"{NEW_DATA}|{NOTHING}",
    "after-a-pause": f"{NEW_DATA}|.*{WRONG}|{NOTHING}",
    "now-and-then": f"{NEW_DATA}|{NOTHING}",
    "stops-working": f"{WRONG}|{NOTHING}",
    "not-waited-for": f"{ORDER}|{WRONG}",
    "does-not-wait": f"{ORDER}|{WRONG}",
    "out-of-order": f"{ORDER}|{WRONG}",
    "out-of-order-with-views": f"{ORDER}|{WRONG}",
}


PLANS = {
    "cupti": {"timer": "cupti"},
    "events": {"timer": "events"},
    "wall": {"timer": "wall"},
    "warm": {"timer": "cupti", "l2": "warm"},
}


@pytest.fixture
def alone(request):
    """Sets a test aside that reads the host's clock while others share the card: their kernels are in every sample."""
    if request.getfixturevalue("plan") == "wall" and int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        pytest.skip("wall times of a card that several processes share")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", EXPECTED)
def test_who_did_not_do_the_work_is_told_so(name, plan):
    said = verdict(BACKENDS[name](), CASE, "cuda:0", max_seconds=0.2, **PLANS[plan])
    assert re.fullmatch(EXPECTED[name], said or "", re.DOTALL), said


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", HONEST)
def test_the_honest_are_left_alone(name, plan):
    backend = BACKENDS[name]() if name in BACKENDS else resolve(name, None)
    assert verdict(backend, CASE, "cuda:0", max_seconds=0.2, **PLANS[plan]) is None


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd-bwd"])
@pytest.mark.parametrize("name", ["flash-triton", "sdpa-flash", "sdpa-cudnn", "eager"])
def test_shipped_kernels_pass_every_inspection(name, mode):
    assert verdict(resolve(name, None), {**CASE, "mode": mode}, "cuda:0", max_seconds=0.2) is None


def test_in_a_run_they_have_no_time_and_the_others_are_measured_on():
    found = ended(carried_out(CASE, ("sdpa-flash", "honest-steps", "in-reload", "by-dirty-flag"), device="cuda:0"))
    assert [found[name] for name in ("sdpa-flash", "honest-steps")] == [("passed", None)] * 2
    assert [found[name][0] for name in ("in-reload", "by-dirty-flag")] == ["incorrect"] * 2
