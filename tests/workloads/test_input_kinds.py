"""Values of q, k and v by name, and captured ones from a file."""

import pytest
import torch

from attnbench.check.reference import References
from attnbench.errors import UsageError
from attnbench.suites.load import load_suite
from attnbench.suites.plan import Request, build
from attnbench.suites.settings import check_input, parse_input
from attnbench.workloads.attention import WORKLOAD as ATTENTION
from attnbench.workloads.attention.inputs import make_inputs
from attnbench.workloads.attention.kinds import KINDS, field, grid_of, positions
from attnbench.workloads.base import load_workload, workload_names
from attnbench.workloads.sparse import WORKLOAD as SPARSE


def case_of(**values):
    return ATTENTION.case({"batch": 2, "seqlen": 1024, "nheads": 2, "headdim": 32, "dtype": "fp32"} | values)


def inputs(kind, seed=0, **values):
    return make_inputs(case_of(**values), seed=seed, kind=kind, device="cpu")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_every_kind_is_finite_seeded_and_the_same_in_every_mode(kind, dtype):
    one, again, other = (inputs(kind, seed, dtype=dtype) for seed in (0, 0, 1))
    trains = inputs(kind, 0, dtype=dtype, mode="bwd")
    for name in "qkv":
        assert getattr(one, name).isfinite().all()
        assert torch.equal(getattr(one, name), getattr(again, name))
        assert torch.equal(getattr(one, name), getattr(trains, name))
        assert kind == "zeros" or not torch.equal(getattr(one, name), getattr(other, name))


def test_outliers_are_few_and_far():
    for x in inputs("outliers").tensors().values():
        share = (x.abs() > 6).float().mean().item()
        assert 2e-4 < share < 1.2e-3
    same = (inputs("outliers").q == inputs("normal").q).float().mean()
    assert 0.998 < same < 0.9995


def test_channel_bias_is_a_mean_of_each_channel_of_k_and_of_v():
    one = inputs("channel-bias")
    means = one.k.mean((0, 1))
    assert means.std().item() == pytest.approx(5.0, rel=0.3)
    assert (one.k - means).std().item() == pytest.approx(1.0, rel=0.05)
    assert one.v.mean().item() == pytest.approx(0.5, abs=0.02)
    assert one.q.mean().item() == pytest.approx(0.0, abs=0.02)


def test_a_video_has_tokens_that_attend_to_their_neighbours_and_text_that_does_not():
    assert grid_of(17776) == (13, 30, 45)
    assert grid_of(20) == (1, 3, 6)
    one = inputs("video", seqlen=13 * 6 * 9 + 30, headdim=64)
    t, h, w = grid_of(13 * 6 * 9 + 30)
    assert (t, h, w) == (13, 6, 9)
    scores = one.q[0, :, 0] @ one.k[0, :, 0].T / 8
    video = scores[30:, 30:].unflatten(0, (t, h * w)).unflatten(2, (t, h * w))
    near = torch.stack([video[i, :, i].mean() for i in range(t)]).mean()
    far = torch.stack([video[0, :, i].mean() for i in range(t - 3, t)]).mean()
    assert near > 2.0
    assert near > far + 1.0
    assert scores[:30].mean().abs() < 0.2
    assert positions(40, (1, 5, 7), torch.device("cpu"))[:5].isnan().all()
    assert torch.equal(
        field("q", torch.zeros(8, 2, 4), positions(8, (2, 2, 2), torch.device("cpu")))[:, 0],
        field("k", torch.zeros(8, 2, 4), positions(8, (2, 2, 2), torch.device("cpu")))[:, 1],
    )


def test_a_sparse_case_has_the_video_of_its_grid():
    values = {"batch": 1, "seqlen": 1000, "nheads": 2, "headdim": 16, "density": 0.5, "dtype": "fp32"}
    own = SPARSE.inputs(SPARSE.case(values | {"grid": "5:10:20"}), seed=0, kind="video", device="cpu")
    guessed = SPARSE.inputs(SPARSE.case(values), seed=0, kind="video", device="cpu")
    assert not torch.equal(own.q, guessed.q)


def test_variable_length_takes_every_kind():
    for kind in KINDS:
        one = inputs(kind, lengths="uniform", seqlen=200, nheads_kv=1)
        assert one.q.dim() == 3
        assert one.k.isfinite().all()


# ── captured ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNBENCH_GIVEN_FILES", "")
    save = pytest.importorskip("safetensors.torch").save_file
    tensors = {name: torch.randn(2, 1024, 2, 32) for name in "qkv"}

    def write(**changed):
        save(
            {name: x.contiguous() for name, x in (tensors | changed).items() if x is not None},
            tmp_path / "captured.safetensors",
        )
        return parse_input(str(tmp_path / "captured.safetensors"))

    write.tensors = tensors
    return write


def test_captured_tensors_are_taken_in_the_precision_of_the_case(saved):
    name = saved()
    assert name.startswith("captured.safetensors@")
    found = inputs(name, dtype="bf16", mode="bwd")
    for one in "qkv":
        assert torch.equal(getattr(found, one), saved.tensors[one].bfloat16())
    assert found.dout.isfinite().all()
    check_input(ATTENTION, name)
    check_input(SPARSE, name)
    case = SPARSE.case({"batch": 2, "seqlen": 1024, "nheads": 2, "headdim": 32, "dtype": "fp32"})
    assert torch.equal(SPARSE.inputs(case, seed=0, kind=name, device="cpu").q, saved.tensors["q"])


def spoiled(value):
    tensor = torch.randn(2, 1024, 2, 32)
    tensor[1, 5, 1] = value
    return tensor


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"q": None}, "has no tensor q; tensors q, k, v"),
        ({"k": torch.randn(2, 1023, 2, 32)}, r"has k of shape \[2, 1023, 2, 32\]; \[2, 1024, 2, 32\]"),
        ({"v": torch.ones(2, 1024, 2, 32, dtype=torch.int32)}, "has v of dtype int32; a floating dtype"),
        ({"q": spoiled(float("nan"))}, r"has 32 elements of q that are NaN .*, the first at \[1, 5, 1, 0\]; finite"),
        ({"k": spoiled(float("inf"))}, "has 32 elements of k that are NaN or infinite"),
        ({"v": spoiled(1e6)}, "has 32 elements of v that are NaN or infinite in the case's precision, the first"),
    ],
)
def test_captured_tensors_that_do_not_fit_are_refused_in_one_line(changed, words, saved):
    name = saved(**changed)
    with pytest.raises(UsageError, match="attention: input=captured.safetensors@.* " + words):
        inputs(name, dtype="fp16")


def test_rows_of_zeros_are_taken_and_named(saved):
    name = saved(v=spoiled(0.0))
    assert inputs(name).notes == ("captured v: 1 of 4096 rows are all 0, the first at [1, 5, 1]",)
    assert inputs("zeros").notes == inputs(saved()).notes == ()
    case = SPARSE.case({"batch": 2, "seqlen": 1024, "nheads": 2, "headdim": 32, "dtype": "fp32"})
    first, second = (SPARSE.inputs(case, seed=0, kind=kind, device="cpu") for kind in (saved(v=spoiled(0.0)), "normal"))
    assert References(SPARSE, case, first, second).notes[0].startswith("captured v: 1 of 4096 rows are all 0")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_file_sets_the_shape_of_a_run(saved, dtype):
    shapes = {"q": (1, 130, 4, 32), "k": (1, 200, 2, 32), "v": (1, 200, 2, 16)}
    name = saved(**{one: torch.ones(shape, dtype=dtype) for one, shape in shapes.items()})
    assert case_ids(name, "quick") == [
        "b1-s130-k200-h4-kv2-d32-dv16-fp32-fwd",
        "b1-s130-k200-h4-kv2-d32-dv16-fp32-causal-fwd",
    ]
    assert case_ids(name, "quick", seqlen=(130,)) == case_ids(name, "quick")
    words = r"--seqlen=64,130 is not that of captured.safetensors@.*; 130; it has batch=1, seqlen=130, .*nheads=4, "
    with pytest.raises(UsageError, match=words):
        case_ids(name, "quick", seqlen=(64, 130))
    square = saved(**{one: torch.ones(1, 128, 2, 32, dtype=dtype) for one in "qkv"})
    assert {one.partition("-64x64")[0] for one in case_ids(square, "sparse", causal=(False,))} == {
        "b1-s128-h2-d32-fp32"
    }
    with pytest.raises(UsageError, match=r"has k of shape \[3\]; \[batch, rows, heads, dims\]"):
        case_ids(saved(k=torch.ones(3)), "quick")
    with pytest.raises(
        UsageError, match=r"has q of shape \[0, 8, 2, 32\]; \[batch, rows, heads, dims\], none of them 0"
    ):
        case_ids(saved(**{one: torch.ones(0, 8, 2, 32) for one in "qkv"}), "quick")


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64])
def test_a_plan_refuses_captured_tensors_that_are_not_floating(saved, dtype):
    with pytest.raises(UsageError, match=r"captured.safetensors@.* has k of dtype \w+; a floating dtype"):
        case_ids(saved(k=torch.ones(2, 1024, 2, 32, dtype=dtype)), "quick")
    with pytest.raises(UsageError, match=r"has k of shape \[2, 9, 2, 32\]; \[2, 1024, 2, 32\]"):
        case_ids(saved(k=torch.ones(2, 9, 2, 32)), "quick")
    with pytest.raises(UsageError, match=r"has v of shape \[3, 1024, 2, 32\]; \[2, 1024, 2, 32\]"):
        case_ids(saved(v=torch.ones(3, 1024, 2, 32)), "quick")
    with pytest.raises(UsageError, match=r"sparse: input=captured.safetensors@.* has v of 16 dims; 32, as q and k"):
        case_ids(saved(v=torch.ones(2, 1024, 2, 16)), "sparse")


def case_ids(name, suite, **axes):
    settings = {"input": name}
    request = Request(suite=load_suite(suite, "cpu"), device="cpu", axes=axes, settings=settings)
    return [group.case_id for group in build(request, run_id="0badcafe", command="", started="").plan]


def test_a_file_that_is_no_such_file(saved, tmp_path):
    saved()
    (tmp_path / "torn.safetensors").write_bytes(b"12345678{}")
    with pytest.raises(UsageError, match=r"cannot be read \(SafetensorError\); a .safetensors file"):
        inputs(parse_input(str(tmp_path / "torn.safetensors")))
    with pytest.raises(UsageError, match="lengths=uniform does not go with captured tensors; full"):
        inputs(saved(), lengths="uniform")


def test_each_workload_says_which_kinds_it_has():
    assert ATTENTION.input_kinds == KINDS
    assert {kind for name in workload_names() for kind in load_workload(name).input_kinds} == set(KINDS)
    for name in workload_names():
        workload = load_workload(name)
        for kind in workload.input_kinds:
            check_input(workload, kind)
    with pytest.raises(UsageError, match=r"hstu: input=video is not known; one of normal, uniform, zeros$"):
        check_input(load_workload("hstu"), "video")
    with pytest.raises(UsageError, match=r"hstu: input=a.safetensors@0123abcd is not known"):
        check_input(load_workload("hstu"), "a.safetensors@0123abcd")
    with pytest.raises(ValueError, match=r"one of normal, uniform, zeros, outliers, channel-bias, video, or a"):
        parse_input("gauss")
    with pytest.raises(ValueError, match="a file that is there"):
        parse_input("nowhere.safetensors")
