"""What few and hollow runs of a Megatron job tell is what running every kind of rank gives."""

from typing import Any

import pytest

from simcore.graph import graph_hash
from tests.tracing.small_jobs import job
from workloads.tracing import MegatronGptJob, TraceReport
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rank_search import RankSearch
from workloads.tracing.drive.trace import trace_in
from workloads.tracing.recipes.megatron import ranks
from workloads.tracing.recipes.megatron.alike import filled
from workloads.tracing.recipes.megatron.short_runs import ShortRuns
from workloads.tracing.record.templates import CutProgram, CutTemplate, Instance

INTERLEAVED = job(
    layers=8, tp=1, pp=4, virtual_pipeline=2, microbatches=8, precision="bf16", recompute="none"
)
SHARDED = job(
    layers=4, tp=1, pp=2, dp=2, virtual_pipeline=2, microbatches=16, precision="bf16",
    distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("case", "whole"),
    [
        (INTERLEAVED, 3),  # the first of the first, second and last stage: the third is told
        (SHARDED, 2),  # every rank has another shard: the first of each stage
        (job(pp=4, microbatches=9), 7),  # 1F1B: the first of each stage, both elsewhere
    ],
    ids=["interleaved", "sharded", "1f1b"],
)
def test_what_is_told_is_what_is_run(
    megatron_pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, case: MegatronGptJob, whole: int
) -> None:
    told, report = trace_in(megatron_pool, case, few := TraceReport()), TraceReport()
    begins = ShortRuns.__init__

    def telling_nothing(self: ShortRuns, *given: Any) -> None:
        begins(self, *given)
        self.tell_no_more()

    monkeypatch.setattr(ShortRuns, "__init__", telling_nothing)
    monkeypatch.setattr(ranks._Programs, "_filled", lambda *_: {})
    assert graph_hash(trace_in(megatron_pool, case, report)) == graph_hash(told)
    assert (few.processes["fingerprint"], report.processes["fingerprint"]) == (whole, case.world_size)


def template(name: str, *rows: str, edges: Any = (), frees: Any = ()) -> CutTemplate:
    columns = ("", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "", "", 0)
    return CutTemplate(name, tuple((row, *columns) for row in rows), edges, frees)


def program(*played: tuple[CutTemplate, int]) -> CutProgram:
    return CutProgram(
        {one.digest(): one for one, _ in played},
        tuple(Instance(one.digest(), microbatch, 0) for one, microbatch in played),
    )


def test_a_pass_that_waits_for_something_else_has_the_whole_models_ops() -> None:
    def passes(*ops: str) -> tuple[CutTemplate, ...]:
        last = len(ops) - 1
        first = template("fwd", "buffer", *ops)
        waits = template("fwd", *ops, edges=((0, -1, 1, "pp", 0),), frees=((last, 8, -1, 2),))
        longer = template("fwd", *ops, edges=((0, -1, 1, "pp", 1),))
        return first, waits, longer

    hollow, whole = passes("norm", "out"), passes("norm", "gemm", "out")
    short = [program((one[0], 0), (one[1], 1)) for one in (hollow, whole)]
    # The third microbatch waits for another message and releases nothing: not played short, but of known ops.
    long = program((hollow[0], 0), (hollow[1], 1), (hollow[2], 2))
    assert filled(long, *short) == program((whole[0], 0), (whole[1], 1), (whole[2], 2))
    # What no short run plays: other ops, and the first microbatch's as that of a later one.
    assert filled(program((template("fwd", "norm"), 1)), *short) is None
    assert filled(program((hollow[0], 1)), *short) is None
    # One template of the hollow model for two of the whole one; and waits that are not the same in both.
    two = program((whole[1], 1), (whole[2], 2))
    assert filled(long, program((hollow[1], 1), (hollow[1], 2)), two) is None
    apart = program((whole[0], 0), (whole[2], 1))
    assert filled(long, program((hollow[0], 0), (hollow[1], 1)), apart) is None


def test_ranks_that_are_forgotten_are_run_again() -> None:
    asked: list[int] = []

    def run(numbers: Any) -> dict[int, str]:
        asked.extend(numbers)
        return dict.fromkeys(numbers, "alike")

    search = RankSearch(run, 8)
    search.ends(4)
    search.classes(job(tp=1, pp=2, dp=2).axes)
    search.forget([3])
    assert search.settle([3]) == dict.fromkeys(range(4), "alike")
    assert asked.count(3) == 2 and asked.count(0) == 1
