"""exp, log and powers: right to a unit or two in the last place, and the same bits everywhere."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.elementary import exp, exp_of, log, log1p, log_of, plain_sum, power

ROOT = Path(__file__).parents[2]
#: Code that decides results.
DECIDES = (
    "simcore/clock.py", "simcore/run.py", "simcore/units.py", "simcore/collectives", "simcore/cost",
    "simcore/engine", "simcore/graph", "simcore/hardware", "simcore/interference", "simcore/memory",
    "simcore/network", "simcore/symmetry", "simcore/timeline", "workloads/evidence", "workloads/jobs",
    "workloads/models", "workloads/parallel",
)  # fmt: skip
#: Of math and numpy: from the C library, or added up in an order that depends on the machine.
OF_THE_MACHINE = {
    "acos", "asin", "atan", "atan2", "cbrt", "cos", "cosh", "dot", "einsum", "erf", "erfc", "exp", "exp2",
    "expm1", "float_power", "gamma", "hypot", "inner", "lgamma", "log", "log10", "log1p", "log2", "matmul",
    "pow", "power", "sin", "sinh", "tan", "tanh", "tensordot", "vdot",
}  # fmt: skip


def ulps(found, expected):
    return abs(found - expected) / math.ulp(expected)


@given(st.floats(-700, 700))
def test_exp(x):
    assert ulps(exp(x), math.exp(x)) <= 2


@given(st.floats(1e-300, 1e300) | st.floats(0.5, 2.0))
def test_log(x):
    assert ulps(log(x), math.log(x)) <= 2


@given(st.floats(0.0, 1e300) | st.floats(0.0, 1e-10))
def test_log1p(x):
    assert ulps(log1p(x), math.log1p(x)) <= 2


@given(st.floats(1e-3, 1e3), st.floats(-3, 3))
def test_power(x, y):
    assert power(x, y) == pytest.approx(math.pow(x, y), rel=(2 + abs(y * math.log(x))) * 2**-52)


def test_what_is_exact():
    assert [exp(0.0), log(1.0), log1p(0.0), power(0.0, 0.5), power(3.0, 0.0)] == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert [power(1.1, 1), power(1.5, 3), power(2.0, -2), power(0.1, 1.0)] == [1.1, 3.375, 0.25, 0.1]
    assert [exp(-1e9), exp(1e9)] == [0.0, math.inf]
    assert log1p(1e-300) == 1e-300


def test_arrays_have_the_bits_of_single_numbers():
    x = np.random.default_rng(0).uniform(-740, 740, 10_000)
    assert exp_of(x).tolist() == [exp(one) for one in x.tolist()]
    positive = np.exp2(np.linspace(-1000, 1000, 10_001))
    assert log_of(positive).tolist() == [log(one) for one in positive.tolist()]
    assert math.isnan(log_of(np.array([math.nan]))[0])


def test_sums_are_not_compensated():
    # sum() of Python 3.12 gives 2.0: it carries along what 1e16 + 1.0 loses.
    assert plain_sum([1e16, 1.0, 1.0, -1e16]) == 0.0


def test_bits_are_those_of_every_machine():
    values = [exp(0.1), exp(-37.7), exp(300.3), log(0.7), log(3.0), log(1e200), log1p(1e-3), power(1.7, 0.3)]
    assert [value.hex() for value in values] == BITS


BITS = [
    "0x1.1aec7b35a00d4p+0",
    "0x1.86d47300a1b65p-55",
    "0x1.2e9c6cabf8f40p+433",
    "-0x1.6d3c324e13f50p-2",
    "0x1.193ea7aad030ap+0",
    "0x1.cc845b54b54f2p+8",
    "0x1.060354f8c3ebfp-10",
    "0x1.2c2cd258622dap+0",
]


def functions_of_the_machine(path):
    """Line and name of each such function of math or numpy that a file uses."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("math", "np", "numpy") and node.attr in OF_THE_MACHINE:
                yield node.lineno, f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield node.lineno, "@"


def test_what_decides_results_leaves_nothing_to_the_machine():
    files = [
        f
        for part in DECIDES
        for f in ([ROOT / part] if part.endswith(".py") else (ROOT / part).rglob("*.py"))
    ]
    files.remove(ROOT / "simcore/interference/train.py")  # fits a model, decides none
    found = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in sorted(files)
        for line, name in functions_of_the_machine(file)
    ]
    assert len(files) > 200
    assert found == []
