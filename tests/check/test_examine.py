"""Each planted misbehaviour must be named; honest launches must pass."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import torch

from attnbench.backends.base import Budget, Launch
from attnbench.check.examine import Examination, Outcome, Wrong, examine, recheck
from attnbench.check.globals import GlobalState
from attnbench.check.poison import poison_outputs, unusable
from attnbench.check.reference import References
from attnbench.dtypes import DTYPES
from attnbench.errors import Unavailable
from attnbench.workloads.base import load_workload
from check import launches
from check.launches import Altered, Buffered, Session, SumCase, SumWorkload

WORKLOAD = SumWorkload()


def references(case: SumCase, **options) -> References:
    return References(WORKLOAD, case, *(WORKLOAD.inputs(case, seed=seed) for seed in (1, 2)), **options)


def run(make, case: SumCase | None = None, **options) -> tuple[Outcome, Launch, References]:
    case = case or SumCase()
    group = references(case, **options)
    launch = make(case, group.first.inputs).launch()
    return examine(launch, group, variant="mean", budget=Budget()), launch, group


def altered(alter):
    return lambda case, inputs: Altered(case, inputs, alter)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 63, 129])
@pytest.mark.parametrize("mode", ["fwd", "fwd-bwd"])
@pytest.mark.parametrize("session", [Session, Buffered])
def test_the_honest_pass(dtype, length, mode, session):
    case = SumCase(length=length, dtype=dtype, mode=mode)
    outcome, launch, group = run(session, case)
    assert outcome == Outcome(True, None, outcome.errors, ())
    assert set(outcome.errors) == ({"out"} if mode == "fwd" else {"out", "dx"})
    for error in outcome.errors.values():
        assert error.ok
        assert error.max_abs <= error.budget
        assert error.cosine == pytest.approx(1, abs=1e-4)
    after = recheck(launch, group, variant="mean", budget=Budget())
    assert (after.ok, after.errors) == (True, outcome.errors)


def test_the_launch_is_left_with_the_first_data():
    _, launch, group = run(Session)
    right = group.first.truth("mean").oracle["out"]
    assert torch.allclose(launch.outputs()["out"].double(), right, atol=1e-6)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            altered(lambda o: o["out"][1, 5, 2, 3].fill_(math.nan)),
            r"out: NaN: 1 of 13158 elements, the first at \[1, 5, 2, 3\]",
        ),
        (
            altered(lambda o: o["dx"][0, 7].fill_(-math.inf)),
            r"dx: Inf: 51 of 13158 elements, the first at \[0, 7, 0, 0\]",
        ),
        (
            altered(lambda o: o["out"][1, 100, 1, 4].add_(0.5)),
            r"out: wrong values: worst error 0\.5 \(budget .*\) at \[1, 100, 1, 4\]; 0\.0076 % of 13158 elements over budget",
        ),
        (altered(lambda o: o.update({3: o["out"]})), r"outputs: name=3 is wrong; a text$"),
        (altered(lambda o: o.pop("dx")), r"dx: missing from the outputs \(out\)"),
        (altered(lambda o: o.update(out=o["out"].numpy())), r"out: type=ndarray is wrong; torch\.Tensor$"),
        (altered(lambda o: o.update(out=o["out"].to("meta"))), r"out: device=meta is wrong; cpu$"),
        (
            altered(lambda o: o.update(out=o["out"].to_sparse())),
            r"out: layout=torch\.sparse_coo is wrong; torch\.strided$",
        ),
        (altered(lambda o: o.update(out=o["out"].double())), r"out: dtype=torch.float64 is wrong; torch.float32"),
        (
            altered(lambda o: o.update(out=o["out"][:, :-1])),
            r"out: shape=\[2, 128, 3, 17\] is wrong; \[2, 129, 3, 17\]",
        ),
        (launches.Unwritten, r"out: never written: 20 of 13158 elements, the first at \[1, 128, 1, 14\]"),
        (launches.Cached, r"cached answer: after new inputs the outputs are still those of the old ones: out, dx"),
        (launches.CachedCopy, r"cached answer: after new inputs the outputs are still those of the old ones: out, dx"),
        (launches.ChangesInput, r"changed inputs: dout$"),
        (launches.UndoesItsChange, r"changed inputs: dout$"),
        (launches.CopyingReload, r"changed inputs: x, dout \(by reload: the session is to keep the new tensors"),
        (launches.ReadsLate, r"with its inputs overwritten after the call: out: wrong values"),
        (launches.Forgetful, r"wrong on a second call with the same inputs: out: wrong values"),
    ],
)
def test_misbehaviour_is_named(make, words):
    outcome, _, group = run(make)
    assert not outcome.ok
    assert re.match(words, outcome.reason), outcome.reason
    assert group.first.changed() == group.second.changed() == []  # put back for the other backends


def other_strides(x):
    x.data = x.mT.contiguous().mT


def other_type(x):
    x.data = x.double()


def other_memory(x):
    x.set_(x.clone())


def result_of_a_gradient(x):
    x.mul_(torch.ones((), requires_grad=True))


@pytest.mark.parametrize(
    "change",
    [
        other_strides,
        other_type,
        other_memory,
        result_of_a_gradient,
        lambda x: x.requires_grad_(),
        lambda x: x.resize_(1),
    ],
)
def test_the_form_of_an_input_is_put_back_too(change):
    group = references(SumCase())
    x = group.first.inputs.x
    values, form = x.clone(), (x.stride(), x.data_ptr())
    change(x)
    assert group.first.changed() == ["x"]
    assert torch.equal(x, values)
    assert (x.stride(), x.data_ptr()) == form
    assert not x.requires_grad
    assert group.first.changed() == []


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("wrap", [lambda out: (out,), lambda out: [("out", out)], lambda out: None, lambda out: out])
def test_outputs_that_are_no_mapping_are_named(wrap):
    class Wrapped(Session):
        def launch(self):
            return dataclasses.replace(super().launch(), outputs=lambda: wrap(self.result["out"]))

    outcome, _, _ = run(Wrapped)
    assert not outcome.ok
    assert re.fullmatch(
        r"outputs: type=(tuple|list|NoneType|Tensor) is wrong; a dict of tensors by their names", outcome.reason
    )


def negated(out):
    """The same numbers, of memory that holds them with the other sign."""
    return torch._neg_view(-out)


def test_what_is_negated_when_it_is_read_passes_and_is_poisoned_as_it_is_in_memory():
    outcome, _, _ = run(altered(lambda o: o.update(out=negated(o["out"]))))
    assert outcome.ok, outcome.reason
    out = negated(torch.ones(3))
    poison_outputs({"out": out}, ())
    assert unusable("out", out) == "out: never written: 3 of 3 elements, the first at [0]"


def test_work_left_to_a_thread_is_named():
    outcome, _, _ = run(launches.Late)
    assert re.match(
        r"out: unfinished work: \d+ of 13158 elements changed after the launch's stream was done", outcome.reason
    )


def test_a_known_mistake_is_named():
    def backwards(case, inputs):
        class Backwards(Session):
            def compute(self):
                answer = super().compute()
                answer["out"] = launches.mean(self.inputs.x.flip(1), self.inputs.x, "fwd")["out"]
                return answer

        return Backwards(case, inputs)

    outcome, _, _ = run(backwards)
    assert outcome.reason.endswith("; matches a sum from the end")
    assert not outcome.errors["out"].ok
    assert outcome.errors["dx"].ok


def test_a_stale_output_of_a_later_noop_is_seen_after_timing():
    class Lazy(Buffered):
        noop_after = 10

    outcome, launch, group = run(Lazy)
    assert outcome.ok
    for _ in range(20):
        launch.forward()
    after = recheck(launch, group, variant="mean", budget=Budget())
    assert after.reason.startswith("right before and wrong after timing: out: never written: 13158 of 13158 elements")


def test_an_output_that_timing_spoilt():
    class Tiring(Session):
        def compute(self):
            answer = super().compute()
            if self.calls > 8:
                answer["out"] *= 1.01
            return answer

    outcome, launch, group = run(Tiring)
    assert outcome.ok
    for _ in range(8):
        launch.forward()
    after = recheck(launch, group, variant="mean", budget=Budget())
    assert after.reason.startswith("right before and wrong after timing: out: wrong values: worst error ")


def test_inputs_changed_by_the_timed_calls():
    outcome, launch, group = run(Session)
    assert outcome.ok
    group.first.inputs.x[0, 0] = 1.0
    after = recheck(launch, group, variant="mean", budget=Budget())
    assert after.reason == "changed inputs: x (while the group was timed)"
    assert recheck(launch, group, variant="mean", budget=Budget()).ok


def test_globals_are_put_back_and_noted():
    outcome, _, _ = run(launches.SetsGlobals)
    assert outcome.ok
    notes = "\n".join(outcome.notes)
    for words in (
        "grad mode (True -> False)",
        "default dtype (torch.float32 -> torch.float64)",
        "float32 matmul precision (highest -> medium)",
        "cudnn benchmark (False -> True)",
        "sdp flash (True -> False)",
        "number of threads (1 -> 2)",
        "CPU random generator (numbers were drawn)",
    ):
        assert f"global left changed: {words}" in notes.replace("state of the ", "")
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_num_threads() == 1


def test_exceptions_pass_through_with_globals_put_back():
    with pytest.raises(RuntimeError, match="no such kernel"):
        run(launches.Raises)
    assert torch.get_default_dtype() == torch.float32


def test_a_missing_backward_is_the_launch_s_own_refusal():
    group = references(SumCase(mode="bwd"))
    launch = Session(SumCase(), group.first.inputs).launch()
    launch.backward = None
    with pytest.raises(Unavailable, match="has no backward"):
        examine(launch, group, variant="mean", budget=Budget())


def test_a_drawn_part_is_noted_and_still_catches_unwritten_memory_elsewhere():
    outcome, _, _ = run(Session, max_bytes=40_000)
    assert outcome.ok
    assert outcome.notes == ("checked in part: 2 columns drawn with seed 0, including the corners",)
    hole = altered(lambda o: o["out"][0, 3, 1].fill_(math.nan))  # not a drawn pair
    assert run(hole, max_bytes=40_000)[0].reason.startswith("out: NaN: 17 of 13158")


def test_phases_are_announced_before_they_start():
    group, said = references(SumCase()), []
    launch = Session(SumCase(), group.first.inputs).launch()
    examine(launch, group, variant="mean", budget=Budget(), announce=said.append)
    assert said == [f"check: {phase}" for phase in ("first data", "fresh data", "poisoned outputs", "first data again")]


def test_reset_comes_before_every_launch():
    group = references(SumCase(mode="fwd"))
    session, order = Session(SumCase(mode="fwd"), group.first.inputs), []
    launch = session.launch()
    launch.reset = lambda: order.append("reset")
    launch.forward = lambda: (order.append("forward"), session.forward())
    assert examine(launch, group, variant="mean", budget=Budget()).ok
    assert order == ["reset", "forward"] * 4


@pytest.mark.parametrize("kind", [Session, Buffered])
def test_a_reset_that_does_the_work_of_the_call_is_seen(kind):
    """It is not timed: what is left of the call would take no time at all."""
    group = references(SumCase(mode="fwd"))
    launch = kind(SumCase(mode="fwd"), group.first.inputs).launch()
    launch.reset, launch.forward = launch.forward, lambda: None
    outcome = examine(launch, group, variant="mean", budget=Budget())
    assert "out: never written: 13158 of 13158 elements" in outcome.reason


def test_which_parts_of_a_large_case_are_checked_on_fresh_data_nobody_knows_beforehand():
    workload = load_workload("attention")
    case = workload.case({"batch": 60, "seqlen": 3, "nheads": 10, "headdim": 4, "dtype": "fp32"})
    first, second = (workload.inputs(case, seed=seed, kind="normal", device="cpu") for seed in (1, 2))
    drawn = [References(workload, case, first, second, seed=7, max_bytes=8 * 40_000) for _ in range(3)]
    assert {one.first.draw.parts for one in drawn} == {None}
    assert len({one.second.draw for one in drawn}) == 3
    assert all(len(one.second.draw.parts) > 10 for one in drawn)


def test_holding_outputs_to_an_answer_reads_no_settings(monkeypatch):
    """It runs none of the backend's code, and an inspection holds outputs three times."""
    _, launch, group = run(Session)
    monkeypatch.setattr(GlobalState, "capture", lambda: pytest.fail("settings were read"))
    examination = Examination(launch, group, "mean", Budget(), lambda phase: None)
    examination.hold(launch.outputs(), group.first)
    with pytest.raises(Wrong, match="out: wrong values"):
        examination.hold(launch.outputs(), group.second)
