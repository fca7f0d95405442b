"""Max-min sharing alone, without simulation."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.network import max_min, share
from simcore.network.maxmin import max_min_by_share


def test_two_links_three_flows():
    # X on link 1 (30), Y on link 2 (50), Z on both: Z = X = 30/2 = 15, Y = 50 - 15 = 35.
    rates = max_min({1: 30.0, 2: 50.0}, [[(1, 1.0)], [(2, 1.0)], [(1, 1.0), (2, 1.0)]], [math.inf] * 3)
    assert rates == [15.0, 35.0, 15.0]


def test_a_cap_leaves_the_rest_to_others():
    # 10 shared by two: one stops at 2, the other takes 8.
    assert max_min({0: 10.0}, [[(0, 1.0)], [(0, 1.0)]], [2.0, math.inf]) == [2.0, 8.0]


def test_weights_are_units_of_the_resource_per_unit_of_progress():
    # Rates rise together: x * 1 + x * 3 = 8 at x = 2.
    assert max_min({0: 8.0}, [[(0, 1.0)], [(0, 3.0)]], [math.inf, math.inf]) == [2.0, 2.0]


def test_share_gives_level_and_allocations():
    # 10 among 1, 4, 8: 1 fits below 10/3; then 9/2 = 4.5 >= 4 fits; 5 is left for 8.
    assert share(10.0, [4.0, 8.0, 1.0]) == (5.0, [4.0, 5.0, 1.0])
    assert share(10.0, [4.0, 5.0]) == (math.inf, [4.0, 5.0])


flows = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 4), st.sampled_from([0.125, 0.5, 1.0, 2.0]), max_size=4),
        st.sampled_from([0.5, 3.0, 20.0, 1e9]),
    ),
    min_size=1,
    max_size=8,
)
capacities = st.lists(st.floats(0.5, 100.0), min_size=5, max_size=5)


@given(flows, capacities)
def test_feasible_and_everyone_has_a_bottleneck(flows, capacities):
    capacity = dict(enumerate(capacities))
    uses = [list(use.items()) for use, _ in flows]
    caps = [cap for _, cap in flows]
    rates = max_min(capacity, uses, caps)
    load = {r: sum(w * rates[i] for i, use in enumerate(uses) for q, w in use if q == r) for r in capacity}
    assert all(load[r] <= capacity[r] * (1 + 1e-9) for r in capacity)
    for i, rate in enumerate(rates):
        assert 0.0 <= rate <= caps[i]
        if rate >= caps[i] * (1 - 1e-9):
            continue
        full = [r for r, _ in uses[i] if load[r] >= capacity[r] * (1 - 1e-9)]
        fastest = [max(rates[j] for j, use in enumerate(uses) if any(q == r for q, _ in use)) for r in full]
        assert any(rate >= top * (1 - 1e-9) for top in fastest), (rates, load)


@given(flows, capacities, st.permutations(range(8)))
def test_order_of_flows_does_not_matter(flows, capacities, order):
    order = [i for i in order if i < len(flows)]
    capacity = dict(enumerate(capacities))
    rates = max_min(capacity, [list(use.items()) for use, _ in flows], [cap for _, cap in flows])
    shuffled = [flows[i] for i in order]
    again = max_min(capacity, [list(use.items()) for use, _ in shuffled], [cap for _, cap in shuffled])
    assert again == pytest.approx([rates[i] for i in order], rel=1e-9)


@given(capacities, flows)
def test_share_is_max_min_on_one_resource(capacities, flows):
    demands = [cap for _, cap in flows]
    _, allocation = share(capacities[0], demands)
    assert allocation == pytest.approx(max_min({0: capacities[0]}, [[(0, 1.0)]] * len(demands), demands))


def test_shares_that_are_the_weights_are_plain_max_min():
    uses = [[(1, 2.0), (2, 1.0)], [(1, 1.0)], [(2, 3.0)]]
    capacity, caps = {1: 30.0, 2: 50.0}, [math.inf, math.inf, 12.0]
    shared = [[(r, w, w) for r, w in use] for use in uses]
    assert max_min_by_share(capacity, shared, caps) == pytest.approx(max_min(capacity, uses, caps))


def test_a_link_is_parted_by_shares():
    # 8 connections from 8 NICs beside 192 from 8: half of 100 each, so rates of 50 / 8 and 50 / 192.
    rates = max_min_by_share({0: 100.0}, [[(0, 8.0, 8.0)], [(0, 192.0, 8.0)]], [math.inf, math.inf])
    assert rates == pytest.approx([50 / 8, 50 / 192])


def test_what_one_cannot_use_goes_to_the_others():
    rates = max_min_by_share({0: 100.0}, [[(0, 8.0, 8.0)], [(0, 192.0, 8.0)]], [2.0, math.inf])
    assert rates == pytest.approx([2.0, 84 / 192])


def test_shares_that_prefer_each_other_still_fill_a_link():
    # Each is favoured where the other is not: both links of 10 offer 1 : 9 and 9 : 1.
    uses = [[(0, 1.0, 1.0), (1, 1.0, 9.0)], [(0, 1.0, 9.0), (1, 1.0, 1.0)]]
    rates = max_min_by_share({0: 10.0, 1: 10.0}, uses, [math.inf, math.inf])
    assert sum(rates) <= 10.0 + 1e-9
    assert min(rates) >= 1.0
