"""Regular expressions of users: what they find, and that none takes long."""

import time

import pytest

from simcore.errors import InputError
from simcore.outside import found_in


def test_what_is_found():
    names = ["aten::mm", "aten::bmm", "nccl::all_reduce", ""]
    assert found_in("mm", names, "x") == [True, True, False, False]
    assert found_in("^aten::[^b]|reduce$", names, "x") == [True, False, True, False]
    assert found_in("(?i)ATEN", ["aten::mm", "\ud800"], "x") == [True, False]
    assert found_in("a", [], "x") == []


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "(a{1000}){1000}", "\ud800", "*"])
def test_what_is_none(pattern):
    with pytest.raises(InputError, match=r"^x: .* is no regular expression \(RE2\): "):
        found_in(pattern, ["a"], "x")


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+$b", "(.*)*x", "(a|a?)+b"])
def test_backtracking_takes_no_time(pattern):
    found_in("a", ["a"], "x")  # what is imported is
    began = time.perf_counter()
    assert found_in(pattern, ["a" * 10_000], "x") == [False]
    assert time.perf_counter() - began < 2
