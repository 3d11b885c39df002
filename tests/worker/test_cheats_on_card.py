"""The same on a GPU: kernels outside the sample, on other streams, and by timers that see the device alone."""

from __future__ import annotations

import re

import pytest
from test_cheats import COMPUTES, LATE, NEW_DATA, UNTIMED, WRONG, carried_out, ended

pytestmark = pytest.mark.gpu

CASE = {"batch": 2, "seqlen": 2048, "nheads": 16, "headdim": 64, "causal": True, "dtype": "bf16"}
HONEST = ("honest-steps", "honest-views", "on-side-stream", "replays-a-graph", "waits-in-reload", "sdpa-flash", "eager")
ORDER = r"out of order with its stream: .*|out: unfinished work.*|with its inputs overwritten after the call: .*"
NOTHING = r".*launched nothing on the device.*"

EXPECTED = {
    "future": f"{LATE}|{NOTHING}|{ORDER}|{WRONG}|{NEW_DATA}",
    "in-outputs": f"{COMPUTES.format('outputs')}|{LATE}|{NOTHING}",
    "in-reset": f".*{WRONG}|{NOTHING}",
    "in-reload": f"{COMPUTES.format('reload')}|{UNTIMED.format('reload')}",
    "by-dirty-flag": NEW_DATA,
    "by-pointer": WRONG,
    "by-version": NEW_DATA,
    "by-version-of-views": WRONG,
    "slow-for-two-calls": NEW_DATA,
    "stops-working": f"{WRONG}|{NOTHING}",
    "not-waited-for": f"{ORDER}|{WRONG}",
    "does-not-wait": f"{ORDER}|{WRONG}",
    "out-of-order": f"{ORDER}|{WRONG}",
    "out-of-order-with-views": f"{ORDER}|{WRONG}",
}


@pytest.mark.parametrize("settings", [
    {"timer": "cupti"}, {"timer": "events"}, {"timer": "wall"}, {"timer": "cupti", "l2": "warm"}])
def test_who_did_not_do_the_work_has_no_time(settings):
    run = carried_out(CASE, (*HONEST, *EXPECTED), device="cuda:0", baseline="sdpa-flash", **settings)
    found = ended(run)
    assert {name: found[name] for name in HONEST} == dict.fromkeys(HONEST, ("passed", None))
    wrong = {name: (status, reason) for name, (status, reason) in found.items() if name in EXPECTED
             and (status not in ("incorrect", "failed") or not re.fullmatch(EXPECTED[name], reason or "", re.DOTALL))}
    assert not wrong


def test_kernels_of_ours_pass_every_inspection():
    for mode in ("fwd", "bwd", "fwd-bwd"):
        run = carried_out({**CASE, "mode": mode}, ("flash-triton", "sdpa-flash", "sdpa-cudnn"), device="cuda:0")
        found = ended(run)
        assert {status for status, _ in found.values()} == {"passed"}, found
