"""A group executed in the test's own process, for effects that a planted backend in another process cannot show."""

from __future__ import annotations

import pytest
from small_runs import MISBEHAVING, small_run

from attnbench.backends.base import Machine
from attnbench.machine.device import CPU
from attnbench.measure.memory import Peak
from attnbench.record import Memory, Status
from attnbench.worker import device, group
from attnbench.worker.activity import ActivityPage
from attnbench.worker.device import ContextLost
from attnbench.worker.group import GroupRun


@pytest.fixture
def carried_out():
    """Records of a group by backend, the later of two holding; and the run, to look at."""
    pages = []

    def carry_out(*backends, machine=Machine("cpu"), case=None, prepare=lambda run: None, **settings):  # noqa: B008
        run = small_run(backends, **settings)
        pages.append(ActivityPage.create())
        records = []
        plan = run.plan[0]
        one = GroupRun(
            plan,
            run.settings,
            files=[MISBEHAVING],
            device=CPU,
            machine=machine,
            page=pages[-1],
            on_record=records.append,
        )
        if case:
            one.case = one.workload.case(plan.case | case)
        prepare(one)
        carry_out.page, carry_out.records = pages[-1], records
        one.carry_out()
        return {record.backend: record for record in records}

    yield carry_out
    for page in pages:
        page.close()


def refuse(error):
    def refused(*args, **kwargs):
        raise error

    return refused


def test_a_poisoned_context_ends_the_worker_with_the_one_who_did_it(carried_out, monkeypatch):
    def synchronize(where):
        if carried_out.page.read().phase == "first call" and carried_out.page.read().index == 1:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    for place in (group, device):
        monkeypatch.setattr(place, "synchronize", synchronize)
    with pytest.raises(ContextLost, match="RuntimeError during first call: CUDA error: an illegal memory") as lost:
        carried_out("honest", "honest-too")
    assert (lost.value.index, lost.value.phase) == (1, "first call")
    assert carried_out.records == [], "nothing is said of it: the parent writes the record"


def test_an_exception_that_the_device_survives_is_a_record(carried_out, monkeypatch):
    monkeypatch.setattr(group, "peak", refuse(RuntimeError("CUDA error: out of resources")))
    found = carried_out("honest")
    assert found["honest"].status is Status.FAILED
    assert found["honest"].reason.startswith("RuntimeError during memory: CUDA error: out of resources")


def test_inputs_that_do_not_fit_are_out_of_memory_of_everybody(carried_out):
    def prepare(run):
        run.workload = type("Large", (type(run.workload),), {"inputs": refuse(MemoryError("200 GiB are not\nthere"))})()

    found = carried_out("honest", "honest-too", prepare=prepare, machine=Machine("cpu", None, 5000))
    assert {record.status for record in found.values()} == {Status.OOM}
    size = "out of device memory for the inputs (200 GiB are not there)"
    words = f"{size}; about 0.25 of its memory: --batch 1 --seqlen 3 --seqlen-k 8"
    assert found["honest-too"].reason.startswith(words)


def test_a_smaller_shape_is_no_advice_where_a_models_tables_fill_the_memory(carried_out):
    def prepare(run):
        large = {"inputs": refuse(MemoryError("the tables")), "table_bytes": lambda self, case: 3000}
        run.workload = type("Large", (type(run.workload),), large)()

    found = carried_out("honest", prepare=prepare, machine=Machine("cpu", None, 5000))["honest"]
    assert found.reason.endswith("for the inputs (the tables); no smaller case of this shape would fit")


def test_an_oracle_that_fails_is_nobodys_fault_and_everybodys_reason(carried_out):
    def prepare(run):
        run.workload = type("Wrong", (type(run.workload),), {"oracle": refuse(ValueError("a sign is wrong"))})()

    found = carried_out("honest", "raises-in-probe", "honest-too", prepare=prepare)
    assert [record.status for record in found.values()] == [Status.FAILED] * 3
    assert found["honest"].reason == found["honest-too"].reason
    assert found["honest"].reason.startswith("ValueError during oracle: a sign is wrong (test_group.py:")
    assert found["raises-in-probe"].reason.startswith("KeyError during probe")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"l2": "cold"}, "cpu: l2=cold is for GPUs; warm or auto on a CPU"),
        ({"timer": "events"}, "timer: timer=events does not work on cpu; for cuda"),
    ],
)
def test_what_the_harness_cannot_do_is_said_once_and_not_of_one_backend(carried_out, settings, words):
    found = carried_out("honest", "honest-too", **settings)
    assert [(record.status, record.reason) for record in found.values()] == [(Status.FAILED, words)] * 2


def test_a_mistake_of_the_sampler_is_not_the_last_backends(carried_out, monkeypatch):
    monkeypatch.setattr(group, "sample", refuse(ZeroDivisionError("no rounds")))
    found = carried_out("honest", "honest-too")
    assert [record.reason.split(" (")[0] for record in found.values()] == [
        "ZeroDivisionError during sampling: no rounds"
    ] * 2


def test_a_kernel_that_reports_no_number_has_no_time(carried_out):
    found = carried_out("reports-nonsense", timer="reported")
    assert found["reports-nonsense"].status is Status.FAILED
    assert "reports-nonsense reported nan ms; a positive number" in found["reports-nonsense"].reason


def test_what_the_timer_cannot_time_leaves_the_others_their_times(carried_out):
    found = carried_out("honest", "reports-a-millisecond", timer="reported")
    assert (found["honest"].status, found["honest"].reason) == (
        Status.FAILED,
        "reported: subject=honest cannot be timed; the launch reports no time of its own",
    )
    assert found["reports-a-millisecond"].time.median_ms == 1.0
    assert found["reports-a-millisecond"].notes == ("no speed-up: measured without the baseline",)


def test_another_kind_of_device_is_skipped(carried_out):
    found = carried_out("honest", machine=Machine("cuda", (9, 0), 2**37))
    assert (found["honest"].status, found["honest"].reason) == (
        Status.SKIPPED,
        "honest: device=cuda is not supported; cpu",
    )


def test_a_backward_that_is_missing_is_skipped(carried_out):
    found = carried_out("honest", case={"mode": "bwd"})
    assert (found["honest"].status, found["honest"].reason) == (Status.SKIPPED, "launch: mode=bwd has no backward; fwd")


def test_checking_only_times_nothing_and_keeps_the_errors(carried_out):
    found = carried_out("honest", "wrong-values", "raises-in-closing", measure=False)
    assert {name: record.status.value for name, record in found.items()} == {
        "honest": "passed",
        "wrong-values": "incorrect",
        "raises-in-closing": "failed",
    }
    assert found["honest"].time is None
    assert found["honest"].errors["out"].ok


def test_the_baseline_is_first_in_the_sampler_and_an_unknown_one_is_no_harm(carried_out):
    seen = []
    original = group.sample

    def sample(subjects, **kwargs):
        seen.append([subject.name for subject in subjects])
        return original(subjects, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "sample", sample)
        carried_out("honest-too", "honest")
        carried_out("honest-too", "no-such-backend", baseline="no-such-backend")
    assert seen == [["honest", "honest-too"], ["honest-too"]]


def test_what_sessions_need_is_started_before_inputs_and_an_error_is_left_to_the_session(carried_out, monkeypatch):
    events = []

    def started(backend, case, place):
        events.append(f"start {backend.name} on {place}")
        raise RuntimeError("not enough devices")

    def prepare(run):
        kind = type(run.workload)
        monkeypatch.setattr(kind, "inputs", noted(events, "inputs", kind.inputs))

    import misbehaving

    monkeypatch.setattr(group, "backend_for", lambda name, case, files: getattr(misbehaving, name)())
    for kind in (misbehaving.Honest, misbehaving.HonestToo):
        monkeypatch.setattr(kind, "prestart", started, raising=False)
        monkeypatch.setattr(kind, "session", noted(events, f"session {kind.name}", kind.session))
    found = carried_out("Honest", "HonestToo", prepare=prepare)
    assert {record.status for record in found.values()} == {Status.PASSED}
    assert events[:2] == ["start honest on cpu", "start honest-too on cpu"]
    assert [event for event in events if event != "inputs"][2:4] == ["session honest", "session honest-too"]
    assert events[2] == "inputs"


def noted(events, word, function):
    def call(*given, **named):
        events.append(word)
        return function(*given, **named)

    return call


def test_a_variant_nobody_knows_is_its_own_backends_failure(carried_out):
    found = carried_out("honest", "of-a-variant-nobody-knows", "honest-too")
    assert [found[name].status for name in ("honest", "honest-too")] == [Status.PASSED] * 2
    assert found["of-a-variant-nobody-knows"].status is Status.FAILED
    assert found["of-a-variant-nobody-knows"].reason == (
        "of-a-variant-nobody-knows: variant=sotfmax is not known; one of softmax; did you mean softmax?"
    )


def test_peak_memory_holds_the_outputs_and_nothing_of_others(carried_out, monkeypatch):
    """Of a launch that lets go of its last result first: above what it held, a call takes its workspace only."""
    others, session, results, workspace, unused = (n * 2**20 for n in (1000, 12, 4, 2, 7))
    said = {"set-up": others + session, "memory": others + session + results}
    opened = []

    def allocated(device):
        phase = carried_out.page.read().phase
        opened.append(phase)
        return others if opened == ["set-up"] else said[phase]

    monkeypatch.setattr(group, "allocated", allocated)
    monkeypatch.setattr(group, "peak", lambda call, device: Peak(workspace, workspace + unused))
    memory = carried_out("honest")["honest"].memory
    assert memory == Memory(peak_allocated_mb=12 + 4 + 2, peak_reserved_mb=12 + 4 + 2 + 7)


def test_a_configuration_that_this_case_lacks_is_skipped_with_the_reason(carried_out):
    found = carried_out("honest", "has-configurations[fast]", "has-configurations[slow]")
    assert found["has-configurations[fast]"].status is Status.PASSED
    record = found["has-configurations[slow]"]
    assert (record.status, record.config) == (Status.SKIPPED, None)
    assert record.reason == "has-configurations: config=slow is not known; one of fast"
