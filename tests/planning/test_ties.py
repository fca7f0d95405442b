"""Which order of strategies is known: from errors of measured siblings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcore.apps.plan.asking import asked
from simcore.elementary import log
from simcore.planning.appraisal import Appraised, Simulated
from simcore.planning.search import Search
from simcore.planning.ties import complexity, first_is_fastest, simplest_first
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
        found = complete({"model": "llama3-8b", "parallel": parallel}, "a job", num_gpus=16)
        return complexity(found.parallel, found.training)

    assert job(tp=8) < job(tp=2, pp=2) < job(tp=2, pp=2, virtual_stages=2)


def shown(question, steps_s, *, gap):
    """The order of candidates, by tp, of which all were simulated, and the certificate of the first."""
    search = Search([Appraised({"parallel.tp": tp}, "", 1, 0) for tp in steps_s], lambda _: 0, gap=gap)
    for tp, step_s in steps_s.items():
        search.learn(Simulated({"parallel.tp": tp}, step_s))
    ranked = simplest_first(question, search)
    return [trial.settings["parallel.tp"] for trial in ranked], search.certificate(ranked[0])


def test_the_simplest_of_those_that_nothing_beats_by_the_gap_is_first():
    question = asked("llama3-8b", "h100-16", ["training.global_batch=32"]).question
    steps_s = {"1": 1.02, "2": 1.0, "4": 1.01, "8": 1.1}
    # 1.0 is less by 1.96% than 1.02, and by 9% than 1.1.
    order, certificate = shown(question, steps_s, gap=0.02)
    assert order == ["1", "2", "4", "8"]
    assert certificate.gap == pytest.approx(1 - 1.0 / 1.02)
    assert certificate.exhaustive
    # With less of a gap the simplest is not as good; without one the fastest is first.
    assert shown(question, steps_s, gap=0.015)[0] == ["2", "4", "1", "8"]
    order, certificate = shown(question, steps_s, gap=0.0)
    assert (order[0], certificate.gap) == ("2", 0.0)


def test_of_the_equally_simple_what_has_room_in_memory_is_first():
    question = asked("llama3-8b", "h100-16", ["training.global_batch=32"]).question
    alike = [Appraised({"training.bucket_parameters": size}, "", peak, 0) for size, peak in
             (("10000000", question.available_bytes), ("40000000", 1), ("160000000", 1))]  # fmt: skip
    search = Search(alike, lambda _: 0, gap=0.02)
    for one, step_s in zip(alike, (1.0, 1.015, 1.01), strict=True):
        search.learn(Simulated(one.settings, step_s))
    assert [trial.step_s for trial in simplest_first(question, search)] == [1.01, 1.015, 1.0]
