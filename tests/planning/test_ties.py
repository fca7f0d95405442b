"""Which order of strategies is known: from errors of measured siblings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcore.elementary import log
from simcore.planning.ties import complexity, first_is_fastest
from workloads.evidence import Siblings, measured_runs, siblings, siblings_of
from workloads.jobs import complete


def test_an_error_turns_half_of_the_differences_that_it_exceeds():
    # Errors of 1, 2, 3, 4%: at a predicted ratio of 2.5% two of four exceed it, of which half turn it.
    known = Siblings(tuple(log(1 + k / 100) for k in (1, 2, 3, 4)), 1)
    assert known.order_is_right(1.0) == 0.5
    assert known.order_is_right(1.025) == 0.75
    assert known.order_is_right(1.05) == 1.0
    assert known.ratio_of(0.75) == pytest.approx(1.02, abs=1e-3)


def test_siblings_are_other_strategies_of_one_job():
    run = next(run for run in measured_runs() if run.quality == "A" and not run.odd and run.features.dp > 1)
    job = run.features
    sibling = replace(
        run, features=replace(job, tp=2 * job.tp, dp=job.dp / 2, microbatches=2 * job.microbatches),
        measured_s=1.1 * run.measured_s, left_out_s=1.05 * run.left_out_s,
    )  # fmt: skip
    again = replace(run, measured_s=1.3 * run.measured_s)  # the same strategy measured once more
    elsewhere = replace(sibling, features=replace(sibling.features, gpus=2 * job.gpus))
    known = siblings_of([run, sibling, elsewhere])
    assert known.errors == pytest.approx([log(1.1) - log(1.05)])
    assert known.num_groups == 1
    assert siblings_of([run, again]).errors == ()


def test_measured_siblings_are_ordered_better_the_further_apart_they_are():
    known = siblings()
    assert len(known.errors) > 500
    assert known.order_is_right(1.02) < known.order_is_right(1.1) < known.order_is_right(1.3)
    assert 1.02 < known.ratio_of(0.8) < 1.15


def test_the_first_of_equals_is_one_of_them():
    known = Siblings((0.02, 0.03, 0.04), 1)
    assert first_is_fastest([1.0], known) == 1.0
    assert first_is_fastest([1.0, 1.0], known) == pytest.approx(0.5, abs=0.05)
    assert first_is_fastest([1.0, 2.0], known) == 1.0
    assert first_is_fastest([1.0, 1.01], known) > first_is_fastest([1.0, 1.0], known)


def test_fewer_axes_are_simpler():
    def job(**parallel):
        return complete({"model": "llama3-8b", "parallel": parallel}, "a job", num_gpus=16)

    assert complexity(job(tp=8)) < complexity(job(tp=2, pp=2)) < complexity(job(tp=2, pp=2, virtual_stages=2))
