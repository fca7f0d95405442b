"""Classes of ranks and skipped microbatches give what tracing everything gives."""

import functools
from typing import Any

import pytest

from simcore.graph import Graph, load_graph, verify
from simcore.graph.layout import contiguous_text
from tests.tracing.small_jobs import gpt_traces, job, read_back
from workloads.tracing import MegatronGptJob, TraceReport
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rank_classes import group_ranks
from workloads.tracing.drive.rounds import workers
from workloads.tracing.drive.trace import trace_in
from workloads.tracing.recipes.megatron.alike import exchanged
from workloads.tracing.recipes.megatron.ranks import extend, extended_program
from workloads.tracing.record.templates import CutProgram, CutTemplate, Instance

CATALOG = "workloads/catalog/graphs"
#: GPT-175B in the catalog: what is simulated by default, and Echo's job.
HEADLINES = {
    "gpt-175b-pp12-tp8-dp1": {"precision": "bf16", "sequence_parallel": True, "recompute": "none"},
    "echo-gpt-175b-pp12-tp8-dp1": {},
}


@pytest.mark.parametrize(
    "case",
    [
        job(layers=3, tp=1, pp=3, microbatches=9, recompute="none"),
        job(layers=4, tp=1, virtual_pipeline=2, microbatches=14, recompute="none"),
        job(layers=2, tp=1, dp=2, overlap_grad_reduce=True, recompute="none"),
    ],
    ids=["1f1b", "interleaved", "overlap"],
)
def test_extending_equals_tracing_every_microbatch(megatron_pool: WorkerPool, case: MegatronGptJob) -> None:
    first_ranks = [stage * case.tp * case.dp for stage in range(case.pp)]
    few = gpt_traces(
        megatron_pool,
        case,
        [(rank, case.traced_microbatches(stage)) for stage, rank in enumerate(first_ranks)],
    )
    assert all(trace.num_microbatches < case.microbatches for trace in few)
    every = {
        trace.rank: trace.program
        for trace in gpt_traces(megatron_pool, case, [(rank, case.microbatches) for rank in first_ranks])
    }
    for trace in few:
        extended = extended_program(case, trace)
        assert extended is not None, f"rank {trace.rank}: no steady state"
        assert extended.skeleton == every[trace.rank].skeleton
        assert extended.digest() == every[trace.rank].digest()
        assert extended.peak_memory() == every[trace.rank].peak_memory()


def test_classes_stand_for_every_rank(megatron_pool: WorkerPool) -> None:
    case = job(layers=2, microbatches=7, precision="bf16", sequence_parallel=True, recompute="selective")
    report = TraceReport()
    graph = trace_in(megatron_pool, case, report)
    assert (report.ranks_run, len(graph.programs), report.warnings) == ([0, 1, 2, 3], 4, [])
    full = gpt_traces(megatron_pool, case, [(rank, case.microbatches) for rank in range(4)])
    for trace in full:
        program = graph.programs[int(graph.program_of_rank[trace.rank])]
        assert program.stage == case.stage_of(trace.rank)
        assert read_back(graph, program).digest() == trace.program.digest()
        assert program.memory.peak == trace.memory.static + trace.program.peak_memory()


def test_sharded_optimizer_with_overlap(megatron_pool: WorkerPool) -> None:
    case = job(
        layers=2,
        tp=1,
        dp=2,
        precision="bf16",
        recompute="none",
        distributed_optimizer=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
    )
    report = TraceReport()
    graph = trace_in(megatron_pool, case, report)
    assert report.warnings == [] and verify(graph) == []
    assert graph.groups["dp"].ranks_of(0) == (0, 1) and graph.groups["pp"].ranks_of(0) == (0, 2)
    ops = graph.ops
    rows = [row for row in range(len(ops)) if ops.group[row] == "dp"]
    issued = {(ops.collective[row], ops.phase[row], ops.stream[row]) for row in rows}
    # Both run beside the computation, on the communicator's own stream.
    assert ("reduce_scatter", "grad_sync", "dp") in issued
    assert ("all_gather", "optimizer", "dp") in issued
    # Parameters are gathered while the first microbatch goes forward, in that template alone.
    gathering = {
        number
        for number in range(graph.num_templates)
        if any(ops.collective[row] == "all_gather" for row in graph.template_rows(number))
    }
    for program in graph.programs:
        played = [
            mb for t, mb in zip(program.template, program.microbatch, strict=True) if int(t) in gathering
        ]
        assert set(played) <= {-1, 0}


def test_graph_does_not_depend_on_the_hash_seed(
    megatron_pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = job(layers=2)
    calls = [(2, 2)]
    (here,) = gpt_traces(megatron_pool, case, calls)
    monkeypatch.setenv("PYTHONHASHSEED", "12345")
    with workers(1, preparation=case.preparation()) as other:
        (there,) = gpt_traces(other, case, calls)
    assert here == there


@pytest.mark.parametrize("name", HEADLINES)
def test_committed_graph_is_what_tracing_gives(megatron_pool: WorkerPool, name: str) -> None:
    graph = committed(name)
    case = headline(**HEADLINES[name])
    assert graph.workload.command == case.command()
    rank = 40  # stage 5
    (trace,) = gpt_traces(megatron_pool, case, [(rank, case.traced_microbatches(5))])
    if trace.versions["torch"].split("+")[0] != graph.workload.versions["torch"].split("+")[0]:
        pytest.skip("another torch version may launch other kernels")
    extended = extended_program(case, trace)
    assert extended is not None
    program = graph.programs[int(graph.program_of_rank[rank])]
    assert trace.memory.static == program.memory.static
    assert extended.peak_memory() == program.memory.activations_peak
    assert extended.digest() == read_back(graph, program).digest()


@functools.cache
def committed(name: str) -> Graph:
    return load_graph(f"{CATALOG}/{name}")


def headline(**options: Any) -> MegatronGptJob:
    return MegatronGptJob(
        layers=96, hidden=12288, heads=96, seq=2048, vocab=51200, tp=8, pp=12, dp=1, microbatches=96,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("name", HEADLINES)
def test_middle_stages_share_templates(name: str) -> None:
    graph = committed(name)
    used = {
        program.stage: {t for t in program.template.tolist() if graph.template_names[t] in ("fwd", "bwd")}
        for program in graph.programs
    }
    assert all(used[stage] == used[5] for stage in range(1, 11))
    assert used[0].isdisjoint(used[5]) and used[11].isdisjoint(used[5])
    # 24 classes: 12 stages x {tensor-parallel rank 0, the others}, which differ in the gradient norm alone.
    assert len(graph.programs) == 24
    assert graph.num_templates < 40


def skeleton(microbatches: int, warm_up: int) -> CutProgram:
    """1F1B by hand: ``warm_up`` forwards, then pairs, then the backwards that are left."""
    forward, backward = (CutTemplate(name, ((name, 0),), (), ()) for name in ("fwd", "bwd"))
    order = [(forward, index) for index in range(warm_up)]
    for index in range(warm_up, microbatches):
        order += [(forward, index), (backward, index - warm_up)]
    order += [(backward, index) for index in range(microbatches - warm_up, microbatches)]
    return CutProgram(
        {template.digest(): template for template in (forward, backward)},
        tuple(Instance(template.digest(), index, 0) for template, index in order),
    )


@pytest.mark.parametrize("warm_up", [0, 1, 5])
@pytest.mark.parametrize("wanted", [10, 11, 96])
def test_extending_a_schedule_written_by_hand(warm_up: int, wanted: int) -> None:
    extended = extend(skeleton(10, warm_up), 10, wanted, shift=1)
    assert extended is not None and extended.skeleton == skeleton(wanted, warm_up).skeleton


def test_extending_refuses_what_does_not_repeat() -> None:
    # Two warm-ups less than the microbatches: the steady state is seen twice, three times are asked for.
    assert extend(skeleton(6, 4), 6, 20, shift=1) is None
    assert extend(skeleton(10, 1), 10, 9, shift=1) is None  # fewer than traced
    assert extend(skeleton(10, 1), 10, 13, shift=2) is None  # not whole periods


def test_an_other_rank_s_program_is_that_of_one_with_templates_exchanged() -> None:
    mine, other = skeleton(3, 1), skeleton(3, 1)
    last = {
        "a": CutTemplate("optimizer", (("a", 0),), (), ()),
        "b": CutTemplate("optimizer", (("b", 0),), (), ()),
    }

    def ended(program: CutProgram, name: str) -> CutProgram:
        digest = last[name].digest()
        return CutProgram(
            {**program.templates, digest: last[name]}, (*program.skeleton, Instance(digest, -1, 0))
        )

    long = ended(skeleton(96, 1), "a")
    assert exchanged(long, ended(mine, "a"), ended(other, "b")) == ended(skeleton(96, 1), "b")
    # Another order, and another backward pass while the long run plays one that the short ones do not.
    assert exchanged(long, ended(mine, "a"), ended(skeleton(3, 2), "b")) is None
    unseen = CutTemplate("optimizer", (("c", 0),), (), ())
    more = CutProgram(
        {**long.templates, unseen.digest(): unseen}, (*long.skeleton, Instance(unseen.digest(), -1, 0))
    )
    assert exchanged(more, ended(mine, "a"), ended(other, "b")) is None
    assert exchanged(more, ended(mine, "a"), ended(other, "a")) == more


def test_classes_split_by_stage_and_fingerprint() -> None:
    fingerprints = {0: "a", 1: "b", 2: "a", 3: "a"}
    stages = {0: 0, 1: 0, 2: 0, 3: 1}
    classes = group_ranks(fingerprints, stages)
    assert [(one.stage, one.ranks) for one in classes] == [(0, (0, 2)), (0, (1,)), (1, (3,))]
    assert contiguous_text([5, 0, 1, 2]) == "0-2, 5"
