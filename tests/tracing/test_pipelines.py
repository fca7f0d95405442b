"""Pipelines and exchanged objects: ranks that run one after the other against processes that really meet."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simcore.errors import InputError
from tests.tracing.against import events, run_really
from tests.tracing.small_jobs import column
from workloads.tracing import TraceReport
from workloads.tracing.drive import rank_run
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rounds import Rounds, workers
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.drive.trace import trace_in
from workloads.tracing.record.assemble import RankTrace

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = SCRIPTS / "pipeline.py"
RANKS = {
    "gpipe": 2,
    "1f1b": 3,
    "interleaved": 2,
    "zbv": 2,
    "dualpipev": 2,
    "ddp": 4,
    "objects": 3,
    "experts": 2,
}
MICROBATCHES, ACTIVATION = 4, 4 * 4 * 32  # a microbatch of 4 rows, 32 wide, in fp32
#: Operators that launch nothing.
SILENT = ("view", "detach", "alias", "t", "expand", "empty", "empty_like", "split", "slice", "_unsafe_view")

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(scope="module")
def really(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What every rank of gloo jobs did, by mode."""
    return run_really(tmp_path_factory.mktemp("gloo"), SCRIPT, RANKS)


@pytest.fixture(scope="module")
def roomy_pool() -> Iterator[WorkerPool]:
    """Workers enough for the ranks that these tests leave behind, which wait for ever."""
    with workers(8) as running:
        yield running


@pytest.fixture(scope="module")
def traced(pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, RankTrace]]:
    """What every rank of the traced jobs did, by mode."""
    found = {}
    for mode, ranks in RANKS.items():
        job = ScriptJob(SCRIPT, (mode,), world_size=ranks, gpus_per_node=ranks)
        rounds = Rounds(pool, lambda _, job=job: job, tmp_path_factory.mktemp(mode))
        rounds.run(range(ranks))
        found[mode] = rounds.seen
    return found


@pytest.mark.parametrize("mode", RANKS)
def test_calls_are_those_of_a_real_run(
    traced: dict[str, dict[int, RankTrace]], really: dict[str, list[Any]], mode: str
) -> None:
    """Order, kind, bytes, peers and groups of every rank's collectives, sends and receives."""
    for rank, trace in traced[mode].items():
        expected = []
        for event in really[mode][rank]:
            if event[0] == "call":
                members, peer = event[3], event[4]
                delta = (members.index(peer) - members.index(rank)) % len(members) if peer >= 0 else 0
                expected.append((event[1], event[2], delta, tuple(members)))
        found = [
            (one.name, one.num_bytes, one.peer, trace.groups[one.group])
            for one in events(trace.program)
            if one.is_call
        ]
        assert found == expected, f"rank {rank}"


@pytest.mark.parametrize("mode", [mode for mode in RANKS if mode not in ("ddp", "objects", "experts")])
def test_transfers_are_waited_for_where_a_real_run_waits(
    traced: dict[str, dict[int, RankTrace]], really: dict[str, list[Any]], mode: str
) -> None:
    """The op behind a ``wait()`` in the real run is the one that waits for that transfer in the trace."""
    for rank, trace in traced[mode].items():
        found = events(trace.program)
        transfers = [index for index, one in enumerate(found) if one.name in ("send", "recv")]
        stream = [found[index].stream for index in transfers]
        number = {index: n for n, index in enumerate(transfers)}
        covered: dict[str, int] = {}
        expected, pending = [], set()
        for event in really[mode][rank]:
            if event[0] == "wait":
                pending.add(event[1])
            elif event[0] == "op" and pending and event[1].removeprefix("aten::") not in SILENT:
                latest: dict[str, int] = {}
                for call in sorted(pending):
                    if call > covered.get(stream[call], -1):
                        latest[stream[call]] = covered[stream[call]] = call
                if latest:
                    expected.append((event[1], sorted(latest.values())))
                pending.clear()
        assert expected or not transfers
        waits = [
            (one.name.partition(".")[0], sorted(number[source] for source in one.waits if source in number))
            for one in found
            if not one.is_call and any(source in number for source in one.waits)
        ]
        assert waits == expected, f"rank {rank}"


def played(trace: RankTrace) -> list[tuple[str, int, int]]:
    """(template, microbatch, chunk) in order, exchanges and what surrounds the schedule left out."""
    program = trace.program
    found = [(program.templates[one.template].name, one.microbatch, one.chunk) for one in program.skeleton]
    return [one for one in found if one[0] in ("fwd", "bwd", "wgrad")]


def test_schedules_are_played_as_they_are_known(traced: dict[str, dict[int, RankTrace]]) -> None:
    # 1F1B on the first of three stages: two forwards ahead, then one of each.
    order = [("fwd", 0), ("fwd", 1), ("fwd", 2), ("bwd", 0), ("fwd", 3), ("bwd", 1), ("bwd", 2), ("bwd", 3)]
    assert played(traced["1f1b"][0]) == [(*one, 0) for one in order]
    forwards, backwards = ([(kind, mb, 0) for mb in range(MICROBATCHES)] for kind in ("fwd", "bwd"))
    assert played(traced["gpipe"][1]) == [*forwards, *backwards]
    # Two chunks a rank: every microbatch once forward and once back on each; a zero bubble splits backwards.
    for mode in ("interleaved", "zbv", "dualpipev"):
        kinds = played(traced[mode][1])  # not the first stage, whose inputs need no gradients
        wanted = {(mb, chunk) for mb in range(MICROBATCHES) for chunk in (0, 1)}
        for name in ("fwd", "bwd"):
            assert sorted(one[1:] for one in kinds if one[0] == name) == sorted(wanted)
        assert any(kind == "wgrad" for kind, _, _ in kinds) == (mode != "interleaved")
    assert all(trace.num_microbatches == MICROBATCHES for trace in traced["zbv"].values())


def test_activations_travel_forward_and_gradients_back(traced: dict[str, dict[int, RankTrace]]) -> None:
    sent: list[tuple[str, int, int]] = []
    for template in traced["1f1b"][1].program.templates.values():
        names = ("phase", "peer_delta", "num_bytes", "name")
        sent += [
            (str(phase), int(delta), int(size))
            for phase, delta, size, name in zip(*(column(template, each) for each in names), strict=True)
            if name == "nccl::send"
        ]
    assert set(sent) == {("fwd", 1, ACTIVATION), ("bwd", 2, ACTIVATION)}  # two places on: the one before


def test_context_parallel_attention_passes_keys_and_values_on(pool: WorkerPool) -> None:
    """torch's own: keys and values go round, backward their gradients, too; (1, 2, 4, 16) each in bf16."""
    job = ScriptJob(SCRIPT, ("context",), world_size=4, gpus_per_node=4)
    found = events(pool.submit(rank_run.run_rank, job, 1).result().program)
    sizes = Counter(one.num_bytes for one in found if one.is_call)
    assert {one.name for one in found if one.is_call} == {"all_to_all"}
    pair = 2 * 2 * 4 * 16  # elements
    # To one other rank of four: as much through a port as of an even exchange of 4/3.  Three times forward
    # and backward; gradients, of keys and values in fp32, four times.
    assert sizes == {pair * 4 // 3 * 2: 3 + 3, pair * 4 // 3 * 4: 4}
    attention = [one for one in found if "scaled_dot_product" in one.name]
    assert len(attention) == 4 + 4  # one for each rank's keys, forward and backward


def test_a_pipeline_is_a_graph_of_its_stages(pool: WorkerPool) -> None:
    """Of eight replicas of a pipeline, the ends and the second are run; what they wait for comes from the
    first.
    """
    report = TraceReport()
    graph = trace_in(pool, ScriptJob(SCRIPT, ("ddp",), world_size=16), report)
    assert [(one.stage, one.num_ranks) for one in graph.programs] == [(0, 8), (1, 8)]
    assert graph.workload.dims == {"dp": 8, "pp": 2} and graph.workload.num_microbatches == MICROBATCHES
    assert report.ranks_run == [0, 1, 2, 14, 15]


def test_axes_of_a_program_by_hand(pool: WorkerPool) -> None:
    """Groups without names on 2 x 2 x 2 x 2 ranks, stages that exchange over the group of the world."""
    graph = trace_in(pool, ScriptJob(SCRIPTS / "four_axes.py", world_size=16))
    assert graph.workload.dims == {"tp": 2, "cp": 2, "pp": 2, "dp": 2}
    assert graph.workload.num_microbatches == MICROBATCHES
    assert graph.workload.model["parameters_per_rank"] == 2 * 2 * 32 * 32
    # A ring of two sends to either side over the world's group, so places on it are classes of their own.
    assert [(one.stage, one.rank_list()) for one in graph.programs] == [
        (0, [0, 1, 8, 9]),
        (0, [2, 3, 10, 11]),
        (1, [4, 5, 12, 13]),
        (1, [6, 7, 14, 15]),
    ]
    first = graph.programs[0]
    names = [graph.template_names[template] for template in first.template]
    played = list(zip(names, first.microbatch.tolist(), strict=True))
    assert [one for one in played if one[0] in ("fwd", "bwd")] == [
        ("fwd", 0), ("fwd", 1), ("bwd", 0), ("fwd", 2), ("bwd", 1), ("fwd", 3), ("bwd", 2), ("bwd", 3)
    ]  # fmt: skip


def test_a_rank_whose_stand_in_cannot_be_met_is_run(pool: WorkerPool) -> None:
    report = TraceReport()
    graph = trace_in(pool, ScriptJob(SCRIPTS / "four_axes.py", ("aside",), world_size=16), report)
    assert [one.rank_list() for one in graph.programs] == [[0], [*range(1, 6), *range(7, 16)], [6]]
    assert report.ranks_run == [0, 1, 6, 15] and report.warnings == []


@pytest.mark.parametrize(
    ("how", "messages"),
    [
        ("objects", ["rank 0 at troubled.py:", "rank 1 has run without sending it", "what to do"]),
        ("circle", ["rank 0 at troubled.py:", "rank 1 at troubled.py:", "waits itself"]),
        ("unsendable", ["troubled.py:", "cannot be pickled", "send plain data"]),
    ],
)
def test_what_is_said_when_objects_do_not_arrive(
    roomy_pool: WorkerPool, how: str, messages: list[str]
) -> None:
    job = ScriptJob(SCRIPTS / "troubled.py", (how,), world_size=2)
    with pytest.raises(InputError) as raised:
        trace_in(roomy_pool, job)
    for message in messages:
        assert message in str(raised.value)
