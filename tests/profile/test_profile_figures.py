"""Numbers as tools print them."""

import pytest

from attnbench.errors import RunFileError
from attnbench.profile.figures import decimal_mark, in_unit, number, triple, whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("62,589,830,968", 62589830968.0),
        ("77,126.7", 77126.7),
        ("0.0", 0.0),
        ("1471.5", 1471.5),
        ("-3.5", -3.5),
        ("1 234.5", 1234.5),
        ("1\u202f234.5", 1234.5),
        ("1'234.5", 1234.5),
        ("1.5e-3", 0.0015),
        ("51.9%", 51.9),
        (".5", 0.5),
        ("n/a", None),
        ("", None),
        (None, None),
        ("nan", None),
        ("inf", None),
        ("-", None),
        ("(8, 1, 1)", None),
        ("1.2.3", None),
        ("12abc", None),
        ("1e99", 1e99),
        ("1e100", None),
        ("9" * 400, None),
    ],
)
def test_a_number(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    ("texts", "mark"),
    [
        (["77,126.7"], "."),
        (["77.126,7"], ","),
        (["0,5"], ","),
        (["1,2345"], ","),
        (["1.234.567"], ","),
        (["1,234,567"], "."),
        (["1,234"], "."),
        (["1.234"], "."),
        (["abc", "12"], "."),
        (["1,234", "0.5"], "."),
        (["1.234", "0,5"], ","),
    ],
)
def test_the_mark_of_a_file(texts, mark):
    assert decimal_mark(texts) == mark


def test_a_mark_decides_for_every_number_of_its_file():
    assert [number(text, decimal_mark(["1.234", "0,5"])) for text in ("1.234", "0,5")] == [1234.0, 0.5]


def test_two_locales_in_one_file_are_refused():
    with pytest.raises(RunFileError, match="both a point and a comma"):
        decimal_mark(["0,5", "0.5"])


@pytest.mark.parametrize(
    ("value", "printed", "wanted", "found"),
    [
        (58352.5, "ns", "ms", 0.0583525),
        (104.99, "usecond", "ms", 0.10499),
        (3.0, "second", "ms", 3000.0),
        (12.5, "Mbyte", "B", 12.5e6),
        (1.79, "Ghz", "MHz", 1790.0),
        (1.79, "cycle/nsecond", "MHz", 1790.0),
        (162.0, "Gbyte/second", "GB/s", 162.0),
        (1.5, "Tbyte/s", "GB/s", 1500.0),
        (5e9, "byte/s", "GB/s", 5.0),
        (5.0, "", "ms", 5.0),
        (24.0, "%", "GB/s", None),
        (162.0, "Gbyte/s", "%", None),
        (7.0, "anything", "", 7.0),
        (None, "ns", "ms", None),
    ],
)
def test_a_unit(value, printed, wanted, found):
    assert in_unit(value, printed, wanted) == pytest.approx(found)


def test_shapes_and_counts():
    assert triple("(128, 1, 1)") == triple("128x1x1") == triple("128   1   1") == (128, 1, 1)
    assert triple("64") == (64, 1, 1)
    assert triple("") is None
    assert triple("2147483647x1x1") == (2147483647, 1, 1)
    assert triple("9" * 5000) is None
    assert whole("811,520") == 811520
    assert whole("1.5") is None
    assert whole("9007199254740991") == 2**53 - 1
    assert whole("9007199254740992") is None
