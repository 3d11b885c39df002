"""Rows of a denoising step: any attention backend by name, counted, timed in place, and wrong ones detected."""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")

from attnbench.backends.base import Machine
from attnbench.backends.registry import all_backends, resolve, select
from attnbench.backends.video import Video, memory_bytes
from attnbench.backends.video_attention import attention_of
from attnbench.backends.video_session import VideoSession, compile_blocks
from attnbench.check.examine import examine, recheck
from attnbench.check.reference import References
from attnbench.errors import AttnbenchError, Unsupported, UsageError
from attnbench.models.video.attention import Exchanged, plain
from attnbench.workloads.attention.inputs import make_inputs
from attnbench.workloads.base import load_workload
from attnbench.workloads.sparse.work import density

WORKLOAD = load_workload("video")
CPU = Machine("cpu")
H200 = Machine("cuda", (9, 0), 140 * 2**30)


def case(**values):
    return WORKLOAD.case(
        {"model": "tiny", "height": 32, "width": 32, "dtype": "fp32", "warm_ups": 0, "steps": 3} | values
    )


def inputs(one, seed=1):
    return WORKLOAD.inputs(one, seed=seed, kind="normal", device="cpu")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """No thread of these launches works on behind a call: there is nothing to wait for."""
    monkeypatch.setattr("attnbench.check.examine.SETTLE_S", 0.0)


@pytest.mark.parametrize(
    ("selector", "values"),
    [
        ("video", {}),
        ("video[eager]", {}),
        ("video[fa]", {"dtype": "bf16"}),
        ("video[sdpa-math]", {"guidance": 1.0}),
        ("video[eager]", {"model": "tiny-wan"}),
    ],
)
def test_a_step_is_right_and_calls_the_attention_once_in_every_layer(selector, values):
    one = case(**values)
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    backend = resolve(selector, one)
    terms = {"variant": "step", "budget": backend.budget(one)}
    with backend.session(one, group.first.inputs) as launch:
        outcome = examine(launch, group, **terms)
        assert outcome.ok, outcome.reason
        launch.reset()
        launch.phases["attention"].call()
        assert launch.phases["attention"].reported_ms() > 0
        assert recheck(launch, group, **terms).ok
    assert launch.counters | {"denoising_steps": 1, "layers": 2, "copies": 0} == launch.counters
    assert launch.notes == (
        "random weights: times and memory hold, frames and which keys matter do not (docs/video.md)",
    )


def session_with(attend, one, found):
    return VideoSession(one, found, attend if isinstance(attend, Exchanged) else Exchanged(attend), name="mine")


@pytest.mark.parametrize(
    "attend",
    [
        lambda q, k, v: torch.zeros_like(v),
        lambda q, k, v: v,
        lambda q, k, v: plain(q, k[:, :-1], v[:, :-1]),
        lambda q, k, v: plain(q.flip(1), k, v),
    ],
)
def test_a_wrong_attention_is_found_in_the_result_of_the_whole_step(attend):
    one = case()
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    launch = session_with(attend, one, group.first.inputs).launch()
    outcome = examine(launch, group, variant="step", budget=resolve("video", one).budget(one))
    assert not outcome.ok
    assert "attention: wrong values" in outcome.reason


@pytest.mark.parametrize(
    ("attend", "said"),
    [
        (lambda q, k, v: None, "NoneType does not fit the model"),
        (lambda q, k, v: plain(q, k, v)[:, :1], r"[2, 1, 4, 16] torch.float32 does not fit the model; [2, 28, 4, 16] "),
        (lambda q, k, v: plain(q, k, v).double(), "torch.float64 does not fit the model"),
    ],
)
def test_an_output_of_another_shape_or_precision_is_named(attend, said):
    one = case()
    session = session_with(attend, one, inputs(one))
    with pytest.raises(AttnbenchError, match=re.escape(said)):
        session.forward()


def test_flex_makes_its_mask_at_set_up_where_compiled_blocks_call_it(monkeypatch):
    given = []

    def flex_attention(q, k, v, *, block_mask, **words):
        given.append(block_mask)
        return q

    monkeypatch.setattr("torch.nn.attention.flex_attention.flex_attention", flex_attention)
    monkeypatch.setattr("attnbench.backends.flex.compiled_alone", lambda attend: attend)
    one = case(height=16)
    with resolve("video[flex]", one).session(one, inputs(one)) as launch:
        launch.forward()
    assert [mask.BLOCK_SIZE for mask in given] == [(2**30, 2**30)] * 2


def test_an_attention_that_changes_its_inputs_is_found_by_its_generation():
    def attend(q, k, v):
        out = plain(q, k, v)
        v.zero_()
        return out

    one = case(steps=1)
    with pytest.raises(AttnbenchError, match="attention input=v was changed by the call; an attention that only reads"):
        session_with(attend, one, inputs(one)).whole()


def test_a_swap_that_does_nothing_cannot_pass():
    one = case()
    found = inputs(one)
    session = session_with(plain, one, found)
    # Somebody puts diffusers' own attention back.
    session.denoiser, _ = found.denoiser(Exchanged(plain))
    with pytest.raises(AttnbenchError, match="mine: attention calls=0 are not those of the model's layers; 2"):
        session.forward()


def test_a_generation_tells_its_times_calls_and_distances():
    one, found = case(), None
    found = inputs(one)
    with (
        resolve("video[sdpa]", one).session(one, found) as first,
        resolve("video[eager]", one).session(one, found) as second,
    ):
        dense, other = first.whole(), second.whole()
    assert dense["attention_calls"] == other["attention_calls"] == 2 * 3
    assert 0 < dense["decode_s"] < dense["generation_s"]
    assert [name for name in dense if name.startswith("latents")] == ["latents_crc32"]
    with resolve("video[sdpa]", one).session(one, inputs(one)) as launch:
        assert launch.whole()["latents_crc32"] == dense["latents_crc32"]  # bit-equal to its own run before
    assert [name for name in other if name.startswith("latents_rel")] == [f"latents_rel_l1_{n}" for n in (1, 2, 3)]
    assert 0 < other["latents_rel_l1_3"] < 1e-4
    assert other["latents_cosine_3"] == pytest.approx(1, abs=1e-6)
    for name in ("attention_rel_l1_layer_0", "attention_rel_l1_layer_1_step_3"):
        assert 0 < other[name] < 1e-5
    nothing = case(generations=0)
    with resolve("video", nothing).session(nothing, inputs(nothing)) as launch:
        assert set(launch.whole()) == {"attention_rel_l1_layer_0", "attention_rel_l1_layer_1"}


@pytest.mark.parametrize("changed", "qkv")
def test_an_attention_that_remembers_answers_by_a_part_of_its_inputs_is_found(changed):
    one, answers = case(generations=0), {}

    def attend(q, k, v):
        seen = {"q": (k, v, q[0]), "k": (q, v, k[0]), "v": (q, k, v[0])}[changed]
        return answers.setdefault(tuple(x.numpy().tobytes() for x in seen), plain(q, k, v))

    with pytest.raises(
        AttnbenchError, match=f"mine: attention=its answer of before was given although {changed} has changed"
    ):
        session_with(attend, one, inputs(one)).whole()


def test_the_attention_by_itself_gets_the_middle_layers_own_operands():
    one, given = case(), []

    def attend(q, k, v):
        given.append((q, k, v))
        return plain(q, k, v)

    launch = session_with(attend, one, inputs(one)).launch()
    launch.phases["attention alone"]()
    assert len(given) == one.config.layers + 1
    for mine, layers in zip(given[-1], given[one.config.layers // 2], strict=True):
        assert torch.equal(mine, layers)
    launch.phases["attention alone"]()
    assert len(given) == one.config.layers + 2


# ── names ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("sdpa", ["video[sdpa]"]),
        ("fa", ["video[sdpa-flash]"]),
        ("fa2,video[fa2],sta", ["video[sdpa-flash]", "video[fa2]", "video[fastvideo-sta]"]),
        ("sdpa,flash-triton,fa3-fwd,sage1", ["video[sdpa]", "video[flash-triton]", "video[fa3-fwd]", "video[sage1]"]),
        ("video[eager],eager", ["video[eager]"]),
        ("fa3,fa3_fp8", ["video[fa3-fwd]", "video[fa3-fwd-fp8]"]),
        (
            "sage2,sparge,sparge_fp8,flashinfer",
            [f"video[{name}]" for name in ("sage2", "sparge", "sparge-fp8", "flashinfer")],
        ),
        ("video", ["video"]),
        ("sdpa-mat*", ["video[sdpa-math]"]),
        ("sparse-flex*", ["video[sparse-flex]"]),
        ("flash-triton[m128n32w8s2-tma-pp]", ["video[flash-triton:m128n32w8s2-tma-pp]"]),
    ],
)
def test_a_backend_of_attention_goes_by_its_own_name(asked, meant):
    assert select([asked], workload="video") == meant
    for name in meant:
        assert resolve(name, case(dtype="bf16")).workload == "video"


def test_all_are_those_of_attention():
    rows = select(["all"], workload="video")
    assert {"video[sdpa]", "video[flash-triton]"} <= set(rows)
    assert len(rows) == sum(one.workload in ("attention", "sparse") for one in all_backends().values())
    assert "video" not in select(["all"], workload="attention")


@pytest.mark.parametrize("wrong", ["hstu-eager", "sdpaa", "video[hstu-eager]", "serving-eager"])
def test_what_is_no_attention_is_refused_with_what_there_is(wrong):
    def ask():
        return [resolve(name, case()) for name in select([wrong], workload="video")]

    with pytest.raises(UsageError) as refused:
        ask()
    assert "\n" not in str(refused.value)


def test_a_launch_configuration_is_read_by_its_backend():
    row = resolve("video[flash-triton:m128n32w8s2-tma-pp]", case(dtype="bf16"))
    assert row.inner.config.short == "m128n32w8s2-tma-pp"
    with pytest.raises(UsageError, match="m1n1"):
        resolve("video[flash-triton:m1n1]", case(dtype="bf16"))


@pytest.mark.parametrize("values", [{"density": 0.5}, {"density": 0.4, "pattern": "frame", "dtype": "bf16"}], ids=str)
def test_a_sparse_row_computes_its_map_in_every_layer(values):
    one = case(block="64x64", height=64, width=96, frames=17, **values)
    assert one.attention.seqlen == one.sparse.seqlen == 16 + 5 * 4 * 6
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    backend = resolve("video[sparse-eager]", one)
    assert backend.variant_of(one) == "sparse-step"
    terms = {"variant": "sparse-step", "budget": backend.budget(one)}
    with backend.session(one, group.first.inputs) as launch:
        outcome = examine(launch, group, **terms)
        assert outcome.ok, outcome.reason
        assert launch.counters["copies"] == 4 * 2
        assert launch.counters["density"] == pytest.approx(density(one.sparse))
        assert 0.2 < launch.counters["density"] < 0.8
    with resolve("video[eager]", one).session(one, group.first.inputs) as launch:
        outcome = examine(launch, group, **terms)
        assert "attention: wrong values" in outcome.reason
        assert "matches a block map that is not read" in outcome.reason


BLOCKS = {"block": "64x64", "height": 64, "width": 96, "frames": 17}
"A video whose attention has three blocks of rows."


@pytest.mark.parametrize("selector", ["sparse-eager[cdf0.5]", "sparse-eager[topk0.4]"])
def test_a_predictor_inside_the_model_is_held_against_the_maps_that_it_used(selector):
    one = case(**BLOCKS)
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    (name,) = select([selector], workload="video")
    backend = resolve(name, one)
    backend.check(one, CPU)
    terms = {"variant": backend.variant_of(one), "budget": backend.budget(one)}
    with backend.session(one, group.first.inputs) as launch:
        outcome = examine(launch, group, **terms)
        assert outcome.ok, outcome.reason
        maps = launch.outputs()["block_map"]
        assert maps.shape == (2, 2, 4, 3, 3)
        assert outcome.counters["density"] == pytest.approx(density_of(maps, one), rel=1e-6)
        assert 0.2 < outcome.counters["density"] < 1
        assert any("the maps that it used in its layers" in note for note in outcome.notes)


def density_of(maps, one):
    """Share of the pairs, counted."""
    rows, keys = (torch.arange(one.tokens) // size for size in one.sparse.block_shape)
    return maps[:, :, :, rows][..., keys].double().mean().item()


def test_a_predictor_that_says_other_maps_than_it_used_is_found(monkeypatch):
    from attnbench.backends.video_attention import Copied

    one = case(**BLOCKS)
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    backend = resolve("video[sparse-eager:cdf0.5]", one)
    honest = Copied.chosen
    monkeypatch.setattr(Copied, "chosen", lambda self: honest(self).roll(1, -1))
    with backend.session(one, group.first.inputs) as launch:
        outcome = examine(launch, group, variant="chosen-step", budget=backend.budget(one))
    assert "attention: wrong values" in outcome.reason


def test_a_map_that_does_not_go_with_the_tokens_is_refused_and_dense_rows_are_not():
    one = case(density=0.3)  # less than one block of this many tokens
    with pytest.raises(Unsupported, match=r"sparse: density=0.3 leaves less than one of the 1 blocks of a row"):
        resolve("video[sparse-eager]", one).check(one, CPU)
    resolve("video[eager]", one).check(one, CPU)


# ── what cannot run ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("selector", "values", "machine", "said"),
    [
        ("video[flash-triton]", {}, CPU, "device=cpu is not supported; cuda"),
        (
            "video[fa3-fwd]",
            {"model": "cogvideox-2b", "dtype": "fp16"},
            H200,
            "dtype=fp16 is not supported; one of bf16",
        ),
        ("video[sta]", {"model": "cogvideox-2b", "dtype": "bf16"}, H200, "headdim=64 is not supported; one of 128"),
        (
            "video[sparge_fp8]",
            {"model": "cogvideox-2b", "dtype": "bf16", "block": "128x64", "density": 0.5},
            H200,
            "block=128x64 does not fit blocks of 64x128: the map keeps some of them in part",
        ),
        ("video[sdpa-flash]", {"model": "cogvideox-2b"}, H200, "dtype=fp32 is not supported"),
        (
            "video[sdpa]",
            {"model": "cogvideox-2b", "dtype": "bf16", "height": 4096, "width": 4096, "frames": 81},
            H200,
            "video: frames=81 at 4096x4096 takes about",
        ),
    ],
)
def test_a_case_that_a_row_cannot_take_is_refused_with_what_it_takes(selector, values, machine, said):
    one = WORKLOAD.case(values) if "height" in values else WORKLOAD.case({"model": "tiny", "dtype": "fp32"} | values)
    with pytest.raises(Unsupported) as refused:
        resolve(selector, one).check(one, machine)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_memory_is_said_with_the_length_that_fits():
    one = WORKLOAD.case({"dtype": "bf16"})
    assert memory_bytes(one) < 40 * 2**30
    Video().check(one, H200)
    with pytest.raises(
        Unsupported,
        match=r"frames=49 at 480x720 takes about \d+ GiB of memory, 11 GiB are there; "
        r"at most (\d+)",
    ):
        Video().check(one, Machine("cuda", (9, 0), 11 * 2**30))


def test_the_attention_of_a_layer_is_that_of_the_micro_benchmark():
    assert WORKLOAD.case({"dtype": "bf16"}).attention.id == "b2-s17776-h30-d64-bf16-fwd"
    assert WORKLOAD.case({"model": "wan-1.3b", "guidance": 1}).attention.id == "b1-s32760-h12-d128-fp16-fwd"


# ── attention as a function, or by copies ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["eager", "sdpa", "sdpa-flash", "sdpa-math"])
def test_a_backends_function_gives_what_its_session_gives(name):
    problem = case().attention
    given = make_inputs(problem, seed=3, kind="normal", device="cpu")
    backend = all_backends()[name]
    with backend.session(problem, given) as launch:
        launch.forward()
        wanted = launch.outputs()["out"]
    with attention_of(backend, problem, torch.device("cpu")) as attention:
        # Of any strides but the last, as projections lie.
        wide = torch.stack([given.q, given.k, given.v], dim=2)
        found = attention(*wide.unbind(2))
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_a_backend_without_a_function_is_fed_by_copies_which_are_counted(monkeypatch):
    from attnbench.backends.eager import Eager

    monkeypatch.setattr(Eager, "attend", lambda self, case, device: None)
    one = case()
    group = References(WORKLOAD, one, inputs(one, 1), inputs(one, 2))
    backend = resolve("video[eager]", one)
    with backend.session(one, group.first.inputs) as launch:
        outcome = examine(launch, group, variant="step", budget=backend.budget(one))
        assert outcome.ok, outcome.reason
        assert launch.counters["copies"] == 4 * 2
        assert list(launch.phases) == ["attention", "attention alone", "copies"]
        launch.phases["copies"].call()
        assert launch.phases["copies"].reported_ms() > 0
        assert any("4 copies a call" in note for note in launch.notes)


def test_a_compiled_transformer_gives_the_same_without_a_graph_break(monkeypatch):
    """By torch's own tracer alone: the code that inductor makes of it is tried on the card."""
    from functools import partial

    monkeypatch.setattr("attnbench.backends.video_session.compile_blocks", partial(compile_blocks, compiler="eager"))
    one = case(compile="default")
    found = inputs(one)
    with (
        resolve("video[eager]", one).session(one, found) as launch,
        resolve("video[eager]", case()).session(case(), found) as plainly,
    ):
        for each in (launch, plainly):
            each.reset()
            each.forward()
        for name, right in plainly.outputs().items():
            torch.testing.assert_close(launch.outputs()[name], right, rtol=0, atol=3e-6)
        counted = launch.whole()
    assert counted["attention_calls"] == 2 * 3
    # One graph for all layers but the first, whose tokens are a part of a larger tensor.
    assert (counted["graph_breaks"], counted["graphs"], counted["recompiles"]) == (0, 2, 0)
