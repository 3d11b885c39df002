"""Cases of block-sparse attention: names, refusals, patterns."""

import json
import sys

import numpy as np
import pytest
import torch

from attnbench.errors import UsageError
from attnbench.workloads.base import load_workload
from attnbench.workloads.sparse import WORKLOAD
from attnbench.workloads.sparse.case import BLOCKS, PATTERNS
from attnbench.workloads.sparse.patterns import block_map, tile_window, visible_pairs

VIDEO = {"seqlen": 418, "grid": "4:10:10"}
STA = {"seqlen": 18 * 24 * 24, "grid": "18:24:24"}


def case_of(**values):
    return WORKLOAD.case({"batch": 2, "seqlen": 1000, "nheads": 3, "headdim": 16} | values)


def of_pattern(pattern, **values):
    return case_of(pattern=pattern, **({"sta": STA}.get(pattern, VIDEO)), **values)


def test_the_workload_is_found_by_its_name_and_a_case_reads_its_own_data_and_flags_back():
    assert load_workload("sparse") is WORKLOAD
    for pattern in PATTERNS:
        case = of_pattern(pattern, causal=pattern == "window", map_seed=3, block="64x128")
        assert WORKLOAD.case(json.loads(json.dumps(case.to_dict()))) == case
        flags = WORKLOAD.flags(case)
        assert flags[flags.index("--pattern") + 1] == pattern
        assert "/" not in case.id
        assert case.id.endswith("-fwd")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"block": "96x128"}, "sparse: block=96x128 is not supported; queries x keys, one of 128x128"),
        ({"pattern": "randon"}, "sparse: pattern=randon is not known; one of full, random"),
        ({"density": 0.0}, "sparse: density=0.0 is out of range; a number above 0, at most 1"),
        ({"density": 1.5}, "sparse: density=1.5 is out of range; a number above 0, at most 1"),
        ({"density": float("nan")}, "sparse: density=nan is out of range; a number above 0, at most 1"),
        ({"density": True}, "sparse: density=True is out of range"),
        ({"density": 0.1}, "sparse: density=0.1 leaves less than one of the 8 blocks of a row; at least 0.125"),
        ({"density": 0.5, "pattern": "full"}, "sparse: density=0.5 does not go with pattern=full; 1"),
        ({"pattern": "radial"}, "sparse: grid=none does not go with pattern=radial; frames:height:width"),
        ({"grid": "10:10"}, "sparse: grid=10:10 is not a grid; frames:height:width"),
        ({"grid": "10:10:11"}, "sparse: grid=10:10:11 has 1100 tokens, seqlen=1000 and seqlen_k=1000"),
        ({"grid": "1:8:8", "seqlen_k": 64}, "sparse: grid=1:8:8 has 64 tokens, seqlen=1000 and seqlen_k=64"),
        ({"grid": "10:10:10", "pattern": "sta"}, "sparse: grid=10:10:10 does not go with pattern=sta, seqlen=1000"),
        ({"nheads_kv": 2}, "sparse: nheads_kv=2 does not divide nheads=3"),
        ({"seqlen": 0}, "sparse: seqlen=0 is out of range"),
        ({"dtype": "int8"}, "sparse: dtype=int8 is not known"),
        ({"causal": 1}, "sparse: causal=1 is not a boolean"),
        ({"widen": "yes"}, "sparse: widen=yes is not a boolean; true or false"),
        ({"map_seed": -1}, "sparse: map_seed=-1 cannot be used; a whole number from 0"),
        ({"pattern": "m.npy@0123abcd", "density": 0.5}, "sparse: density=0.5 is said by the file m.npy@0123abcd; none"),
        ({"window": (3, 3)}, "sparse: axis=window is not known"),
    ],
)
def test_wrong_values_are_refused_in_one_line(values, words):
    with pytest.raises(UsageError) as caught:
        case_of(**values)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pattern", [one for one in PATTERNS if one not in ("full", "sta")])
def test_a_row_keeps_its_share_of_the_visible_blocks(pattern, causal, block):
    case = of_pattern(pattern, causal=causal, block=block, density=0.5)
    found, possible = block_map(case), visible_pairs(case) > 0
    assert not (found & ~possible).any()
    counts, visible = found.sum(-1), np.broadcast_to(possible.sum(-1), found.shape[:3])
    if pattern == "random-uneven":
        assert counts.min() >= 1
        assert len(set(counts.ravel())) > 2
    else:
        rows, columns = case.block_shape
        forced = 1 if not causal else max(1, rows // columns)
        assert (counts == np.maximum(np.floor(0.5 * visible + 0.5), np.minimum(forced, visible))).all()
    if causal:  # every query sees itself
        keys = np.repeat(np.repeat(found, case.block_shape[0], 2), case.block_shape[1], 3)[..., :418, :418]
        assert np.diagonal(keys, axis1=2, axis2=3).all()


def test_maps_are_the_same_for_ever_and_differ_by_seed_head_and_sequence():
    case = case_of(density=0.5)
    text = "".join("01"[int(x)] for x in block_map(case)[1, 2, 3])
    assert text == "01101100"
    one = block_map(case)
    assert not np.array_equal(one, block_map(case_of(density=0.5, map_seed=1)))
    assert not np.array_equal(one[0], one[1])
    assert not np.array_equal(one[:, 0], one[:, 1])
    assert np.array_equal(one, block_map(case_of(density=0.5, headdim=32, dtype="bf16")))
    for share in (0.25, 0.5, 0.75, 1.0):
        uneven = block_map(case_of(batch=16, nheads=64, density=share, pattern="random-uneven"))
        assert abs(uneven.mean() - share) < 0.02


def test_more_density_keeps_what_less_keeps():
    for pattern in ("random", "window", "sink", "frame", "radial"):
        less, more = (block_map(of_pattern(pattern, density=share)) for share in (0.25, 0.75))
        assert (less & ~more).sum() == 0


def test_patterns_keep_what_their_names_say():
    window, sink, frame, radial = (
        block_map(of_pattern(name, block="64x64", density=0.5))[0, 0] for name in ("window", "sink", "frame", "radial")
    )
    assert window.diagonal().all()
    assert not window[0, -1]
    assert sink[:, 0].all()
    # 18 tokens of text, then frames of 100: block 0 holds text, and the first frame ends in block 1.
    assert frame[:, 0].all()
    assert frame.diagonal().all()
    assert radial[:, :2].all()


def test_sta_boxes_have_one_size_and_stay_inside_the_video():
    case = of_pattern("sta", density=0.9 / 3)
    assert tile_window(case) == (1, 3, 3)
    found = block_map(case)[0, 0]
    assert (found.sum(-1) == 9 * 3).all()
    whole = found.reshape(27, 3, 27, 3)
    assert (whole.any(axis=(1, 3)) == whole.all(axis=(1, 3))).all()
    for tile in range(27):  # the whole of its own third of the frames
        seen = np.stack(np.unravel_index(np.flatnonzero(whole.any(axis=(1, 3))[tile]), (3, 3, 3)))
        assert set(seen[0]) == {tile // 9}


def test_a_video_is_in_the_order_in_which_the_map_takes_its_tokens():
    """Tokens of one tile are alike, and those of one part of a line are not, where tokens are in tile order."""

    def likeness(**values):
        case = case_of(batch=1, nheads=1, headdim=64, block="64x64", seqlen=12 * 24 * 24, grid="12:24:24", **values)
        q = WORKLOAD.inputs(case, seed=0, kind="video", device="cpu").q[0, :, 0].float()
        mean = torch.nn.functional.normalize(q, dim=-1).unflatten(0, (-1, 384)).mean(1)
        return float(mean.square().sum(-1).mean())  # mean cosine of two of 384 tokens, as many as a tile has

    assert likeness(pattern="sta", density=0.1) > 1.5 * likeness(pattern="frame", density=0.1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_plan_knows_about_what_a_case_computes_from_one_head(pattern, causal, monkeypatch):
    case, made = of_pattern(pattern, causal=causal, density=1.0 if pattern == "full" else 0.4), []
    exact = WORKLOAD.work(case).flops
    counting = sys.modules["attnbench.workloads.sparse.work"]
    monkeypatch.setattr(counting, "block_map", lambda case: made.append(block_map(case)) or made[-1])
    assert WORKLOAD.planned_flops(case) == pytest.approx(exact, rel=0.25)
    assert [blocks.shape[:2] for blocks in made] == [(1, 1)]


@pytest.mark.parametrize("pattern", ["full", "random", "window", "radial", "sta"])
def test_a_plan_makes_no_map_that_does_not_fit_in_memory(pattern, monkeypatch):
    grid = "1:8192:2048" if pattern == "radial" else "6:4096:680" if pattern == "sta" else None
    seqlen = 6 * 4096 * 680 if pattern == "sta" else 2**24
    case = WORKLOAD.case(
        {"batch": 64, "seqlen": seqlen, "nheads": 128, "pattern": pattern, "grid": grid, "block": "64x64"}
    )
    monkeypatch.setattr(sys.modules["attnbench.workloads.sparse.work"], "block_map", lambda case: pytest.fail("made"))
    dense = 4 * 64 * 128 * 64 * seqlen**2
    assert WORKLOAD.planned_flops(case) == pytest.approx(case.density * dense, rel=1e-9)


def test_a_map_from_a_file_is_the_map_and_its_name_has_no_path(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNBENCH_GIVEN_FILES", "")
    rng = np.random.default_rng(0)
    wanted = rng.random((2, 3, 8, 8)) < 0.5
    np.save(tmp_path / "mine.npy", wanted)
    axis = next(axis for axis in WORKLOAD.axes if axis.name == "pattern")
    name = axis.parse(str(tmp_path / "mine.npy"))
    assert name.startswith("mine.npy@")
    assert axis.parse(name) == name
    case = case_of(pattern=name)
    assert np.array_equal(block_map(case), wanted)
    assert case.density is None
    assert str(tmp_path) not in json.dumps(case.to_dict())
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"block_map": torch.from_numpy(wanted), "other": torch.zeros(1)}, tmp_path / "m.safetensors")
    assert np.array_equal(block_map(case_of(pattern=axis.parse(str(tmp_path / "m.safetensors")))), wanted)
    (tmp_path / "mine.npy").write_bytes(b"another")
    block_map.cache_clear()
    with pytest.raises(UsageError, match=r"sparse: pattern=mine.npy@\w+ is not there; a file with this name and SHA"):
        block_map(case)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 3, 8, 7), bool), r"has shape=\[2, 3, 8, 7\]; \[2, 3, 8, 8\]: batch, query heads"),
        (np.zeros((2, 3, 8, 8), np.float32), "has dtype=float32; bool, or whole numbers 0 and 1"),
        (np.full((2, 3, 8, 8), 2, np.uint8), "has values other than 0 and 1; 0 and 1"),
        (np.full((2, 3, 8, 8), -1, np.int64), "has values other than 0 and 1; 0 and 1"),
        (np.array({"a": 1}, dtype=object), r"cannot be read \(ValueError\); a .npy or .safetensors file"),
    ],
)
def test_a_file_that_is_no_map_of_the_case_is_refused(array, words, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNBENCH_GIVEN_FILES", "")
    np.save(tmp_path / "bad.npy", array, allow_pickle=True)
    axis = next(axis for axis in WORKLOAD.axes if axis.name == "pattern")
    case = case_of(pattern=axis.parse(str(tmp_path / "bad.npy")))
    with pytest.raises(UsageError, match=words):
        WORKLOAD.work(case)


@pytest.mark.parametrize(
    ("shape", "why"),
    [("(2, 3, 8, 8", "TokenError"), ("(999999, 999999, 99, 99)", "MemoryError"), (f"({2**70},)", "OverflowError")],
)
def test_a_damaged_header_of_a_map_is_refused(shape, why, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNBENCH_GIVEN_FILES", "")
    header = f"{{'descr': '|b1', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(384))
    axis = next(axis for axis in WORKLOAD.axes if axis.name == "pattern")
    case = case_of(pattern=axis.parse(str(tmp_path / "bad.npy")))
    with pytest.raises(UsageError, match=rf"bad.npy@\w+ cannot be read \(\w*{why}\); a .npy or .safetensors file"):
        block_map(case)


@pytest.mark.parametrize(("dtype", "words"), [("bfloat16", "dtype=BF16"), ("float8_e4m3fn", "dtype=F8_E4M3")])
def test_types_that_numpy_lacks_are_refused_in_a_map_and_may_lie_beside_one(dtype, words, tmp_path, monkeypatch):
    save = pytest.importorskip("safetensors.torch").save_file
    monkeypatch.setenv("ATTNBENCH_GIVEN_FILES", "")
    axis = next(axis for axis in WORKLOAD.axes if axis.name == "pattern")
    ones = torch.ones(2, 3, 8, 8)
    save({"block_map": ones.to(getattr(torch, dtype))}, tmp_path / "bad.safetensors")
    with pytest.raises(UsageError, match=f"has {words}; bool, or whole numbers 0 and 1"):
        block_map(case_of(pattern=axis.parse(str(tmp_path / "bad.safetensors"))))
    save({"block_map": ones.bool(), "q": torch.ones(3).to(getattr(torch, dtype))}, tmp_path / "good.safetensors")
    assert block_map(case_of(pattern=axis.parse(str(tmp_path / "good.safetensors")))).all()


def test_a_file_that_is_not_there_is_no_pattern():
    axis = next(axis for axis in WORKLOAD.axes if axis.name == "pattern")
    with pytest.raises(ValueError, match="a file that is there"):
        axis.parse("nowhere.npy")
    with pytest.raises(ValueError, match="one of full, random"):
        axis.parse("nowhere.txt")


def test_a_suites_densities_are_put_aside_by_none():
    axis = next(axis for axis in WORKLOAD.axes if axis.name == "density")
    assert axis.parse("none") is None
    assert axis.parse("0.5") == 0.5
    for text in ("0", "1.1", "nan", "x", "0.\u0665", "0.2_5"):
        with pytest.raises(ValueError, match="a number above 0, at most 1, or none where a file says the map"):
            axis.parse(text)


def test_a_suites_densities_give_way_to_a_file_and_to_the_full_map_and_those_asked_for_do_not():
    values = {"seqlen": 512, "density": 0.25, "block": "64x64"}
    for pattern in ("full", "mine.npy@0123abcd"):
        given = values | {"pattern": pattern}
        assert WORKLOAD.fitted(given, {"pattern"})["density"] is None
        assert WORKLOAD.fitted(given, {"pattern", "density"}) == given
        assert WORKLOAD.fitted(given, {"seqlen", "pattern"})["density"] is None
    assert WORKLOAD.fitted(values | {"pattern": "window"}, {"pattern"})["density"] == 0.25
    assert WORKLOAD.fitted(values | {"pattern": "window", "seqlen": 128}, {"seqlen"})["density"] == 0.5
