"""The rule of parts that workloads share: all corners, and the rest by seed within the memory limit."""

from __future__ import annotations

import pytest

from attnbench.workloads.base import Draw, load_workload
from attnbench.workloads.drawing import draw_parts

USERS = [(user,) for user in range(100)]


def drawn(everything=USERS, corners=((0,), (99,)), unit="users", key="a", max_bytes=1000, size=lambda part: 50):
    return draw_parts(everything, corners, unit=unit, key=key, max_bytes=max_bytes, result_bytes=size)


def test_the_whole_where_it_fits():
    assert drawn(max_bytes=5000) == Draw()
    assert drawn(max_bytes=4999) != Draw()


def test_as_many_parts_as_fit_with_the_corners_among_them():
    draw = drawn()
    assert len(draw.parts) == 20 == len(set(draw.parts))
    assert {(0,), (99,)} <= set(draw.parts) <= set(USERS)
    assert draw.parts == tuple(sorted(draw.parts))


def test_corners_are_drawn_even_where_they_alone_take_more():
    assert drawn(max_bytes=0).parts == ((0,), (99,))


def test_a_part_too_large_leaves_room_for_smaller_ones():
    sizes = {part: 10 if part[0] % 2 else 10**6 for part in USERS}
    draw = drawn(corners=((1,),), size=sizes.__getitem__, max_bytes=300)
    assert len(draw.parts) == 30
    assert all(user % 2 for (user,) in draw.parts)


def test_the_key_decides_and_nothing_else():
    assert drawn() == drawn()
    assert drawn(key="b") != drawn()
    assert drawn(everything=USERS[::-1]).unit == "users"


def test_corners_that_are_everything_are_the_whole():
    assert drawn(everything=[(0,), (1,)], corners=[(0,), (1,)], max_bytes=0) == Draw()


@pytest.mark.parametrize("parts", [((3, 1, 4), (1, 5, 9)), ((2,), (6,))])
def test_the_record_says_how_many_of_what(parts):
    assert Draw(parts, "blocks of frames").note(7) == (
        "checked in part: 2 blocks of frames drawn with seed 7, including the corners"
    )
    assert Draw().note(7) is None


@pytest.mark.parametrize("name", ["attention", "hstu"])
def test_the_attention_families_draw_pairs(name):
    workload = load_workload(name)
    draw = workload.draw(workload.case({"batch": 7, "nheads": 5}), seed=0, max_bytes=0)
    assert draw.parts
    assert draw.unit == "(sequence, head) pairs"
