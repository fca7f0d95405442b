"""Scripts of users: what is recorded of them, which ranks are run, and what is said when they fail."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from simcore.apps.errors import as_app
from simcore.errors import GraphError, InputError
from simcore.graph import load_graph
from tests.tracing.small_jobs import column
from workloads.tracing.drive import cli
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rank_classes import TraceReport
from workloads.tracing.drive.rank_search import RankSearch
from workloads.tracing.drive.script_job import ScriptJob, parse_steps, parse_values
from workloads.tracing.drive.trace import trace_in
from workloads.tracing.fake.group_names import FamilyNames
from workloads.tracing.record.world_axes import WorldAxis, nested_axes

SCRIPTS = Path(__file__).parent / "scripts"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

# The model of scripts/small.py: three blocks of linear 64 -> 256 -> 64 and a norm, batch 8, fp32.
BLOCK = 64 * 256 + 256 + 256 * 64 + 64 + 2 * 64  # parameters
MODEL = 3 * BLOCK

app = as_app(cli.app)


def run(pool: WorkerPool, script: str, *arguments: str, rank: int = 1, **options: Any) -> Any:
    """The RankTrace of one rank."""
    from workloads.tracing.drive import rank_run

    job = ScriptJob(SCRIPTS / script, arguments, **{"world_size": 8, **options})
    return pool.submit(rank_run.run_rank, job, rank).result()


def calls(found: Any) -> Counter[tuple[str, str, str, int]]:
    """(phase, collective, group, bytes) of a step's collectives, counted."""
    counted: Counter[tuple[str, str, str, int]] = Counter()
    for entry in found.program.skeleton:
        template = found.program.templates[entry.template]
        names = ("phase", "collective", "group", "num_bytes")
        rows = zip(*(column(template, name) for name in names), strict=True)
        counted.update(row for row in rows if row[1])
    return counted


def test_ddp_reduces_every_gradient_once(pool: WorkerPool) -> None:
    found = run(pool, "small.py", "ddp")
    reduced = calls(found)
    assert {key[:3] for key in reduced} == {("grad_sync", "all_reduce", "world")}
    assert sum(size * times for (*_, size), times in reduced.items()) == 4 * MODEL
    memory = found.memory
    assert (memory.parameters, memory.optimizer_states) == (4 * MODEL, 0)


def test_accumulation_is_two_microbatches_and_reduces_in_the_last(pool: WorkerPool) -> None:
    found = run(pool, "small.py", "accumulate")
    kinds = [
        (found.program.templates[entry.template].name, entry.microbatch) for entry in found.program.skeleton
    ]
    assert [kind for kind in kinds if kind[0] in ("fwd", "bwd")] == [
        ("fwd", 0), ("bwd", 0), ("fwd", 1), ("bwd", 1)
    ]  # fmt: skip
    first, last = [
        sum(bool(name) for name in column(found.program.templates[entry.template], "collective"))
        for entry in found.program.skeleton
        if found.program.templates[entry.template].name == "bwd"
    ]
    assert first == 0 < last and found.num_microbatches == 2


def test_checkpointing_recomputes_the_blocks(pool: WorkerPool) -> None:
    flops: Counter[str] = Counter()
    for template in run(pool, "small.py", "checkpoint").program.templates.values():
        for phase, count in zip(column(template, "phase"), column(template, "flops"), strict=True):
            flops[phase] += count
    forward = 3 * 2 * (2 * 8 * 64 * 256)  # three blocks, two products each, batch 8
    # The first product's input needs no gradient: one product less than twice the forward pass.
    assert flops["fwd"] == flops["recompute"] == forward
    assert flops["bwd"] == 2 * forward - 2 * 8 * 64 * 256


def test_fsdp2_gathers_twice_and_scatters_once(pool: WorkerPool) -> None:
    counted = calls(run(pool, "small.py", "fsdp2"))
    # Rows are cut in 8; 64 and 256 are divisible: nothing is padded.  The root shards nothing of its own.
    assert counted["fwd", "all_gather", "world", 4 * BLOCK] == 3
    assert counted["bwd", "all_gather", "world", 4 * BLOCK] >= 2  # the last block may stay gathered
    assert counted["grad_sync", "reduce_scatter", "world", 4 * BLOCK] == 3


def test_shards_that_are_kept_for_the_backward_pass_are_no_tensor_parallelism(pool: WorkerPool) -> None:
    graph = trace_in(pool, ScriptJob(SCRIPTS / "small.py", ("fsdp2_near",), world_size=4))
    assert graph.workload.dims == {"dp": 4}


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_gradients_of_the_few_that_are_trained_are_no_tensor_parallelism(pool: WorkerPool, mode: str) -> None:
    # Reduced are 4 * (512 + 260) bytes, less than the 33,860 parameters; inside of modules norms exchange
    # their sums, or shards are gathered.
    graph = trace_in(pool, ScriptJob(SCRIPTS / "frozen.py", (mode,), world_size=2))
    assert graph.workload.dims == {"dp": 2}


def test_fsdp1_and_hsdp(pool: WorkerPool) -> None:
    flat = calls(run(pool, "small.py", "fsdp1"))
    assert flat["grad_sync", "reduce_scatter", "world", 4 * BLOCK] == 3
    hybrid = calls(run(pool, "small.py", "hsdp"))
    assert hybrid["grad_sync", "reduce_scatter", "shard", 4 * BLOCK] == 3
    assert hybrid["grad_sync", "all_reduce", "replicate", 4 * BLOCK // 2] == 3


def test_tensor_parallel_reduces_activations(pool: WorkerPool) -> None:
    counted = calls(run(pool, "small.py", "fsdp2_tp"))
    activation = 4 * 8 * 64
    assert counted["fwd", "all_reduce", "tp", activation] == 3
    # The first block's input needs no gradient.
    assert counted["bwd", "all_reduce", "tp", activation] == 2
    assert {group for _, name, group, _ in counted if name == "reduce_scatter"} == {"dp"}


def test_every_local_rank_has_its_own_device_and_does_the_same(pool: WorkerPool) -> None:
    digests = {run(pool, "small.py", "fsdp2_tp", rank=rank).program.digest() for rank in (0, 3, 7)}
    assert len(digests) == 1


def played(found: Any) -> list[str]:
    """Kinds of the templates of a step, in order."""
    return [found.program.templates[entry.template].name for entry in found.program.skeleton]


def test_optimizers_in_a_row_end_a_step_together(pool: WorkerPool) -> None:
    assert played(run(pool, "steps.py", "two_optimizers")) == ["fwd", "bwd", "optimizer", "optimizer"]


def test_optimizers_in_turn_end_a_step_with_the_one_that_stepped_last_first(pool: WorkerPool) -> None:
    report = TraceReport()
    graph = trace_in(pool, ScriptJob(SCRIPTS / "steps.py", ("in_turn",), world_size=1), report)
    rows = graph.flat_ops(graph.programs[0]).row
    # Three steps of the one: forward and the weight's gradient, batch 2, 4 -> 4; one of both: two products
    # forward, three back.
    assert graph.ops.flops[rows].sum() == (3 * 2 + 5) * 2 * 2 * 4 * 4
    names = [str(graph.ops.name[row]) for row in rows]
    # Optimizers take all of their parameters at once, as they do on GPUs; so does clipping.
    assert (
        names.count("aten::_foreach_addcdiv_.ScalarList") == 4
        and names.count("aten::_foreach_norm.Scalar") == 3
    )
    assert "aten::addcdiv_" not in names
    assert report.processes == {"trace": 2} and not report.warnings


@pytest.mark.parametrize(("how", "passes", "runs"), [("gathered", 5, 1), ("unused", 1, 2)])
def test_written_parameters_are_an_update_where_no_optimizer_steps(
    pool: WorkerPool, how: str, passes: int, runs: int
) -> None:
    report = TraceReport()
    graph = trace_in(pool, ScriptJob(SCRIPTS / "steps.py", (how,), world_size=1), report)
    rows = graph.flat_ops(graph.programs[0]).row
    # Two layers: two products forward, three back; batch 2, 4 -> 4.
    assert graph.ops.flops[rows].sum() == passes * 5 * 2 * 2 * 4 * 4
    assert report.processes == {"trace": runs} and not report.warnings


def test_of_a_script_with_fewer_steps_the_last_is_kept(pool: WorkerPool) -> None:
    report = TraceReport()
    job = ScriptJob(SCRIPTS / "steps.py", ("once", "--local_rank={local_rank}"), world_size=2)
    graph = trace_in(pool, job, report)
    assert graph.workload.options["step"] == 0 and len(graph.programs) == 1
    assert graph.workload.model["parameters_per_rank"] == 2 * (4 * 4 + 4)
    assert report.warnings == [
        "the script takes no more than 1 steps: the last is kept, in which optimizers make their states, and "
        "memory of parameters counts with the activations'"
    ]
    with pytest.raises(InputError, match=r"before step 2 was complete \(1 optimizer\.step"):
        trace_in(pool, replace(job, exact_step=True))


def test_a_script_that_computes_on_the_host_is_told_so(pool: WorkerPool) -> None:
    with pytest.raises(InputError, match="step 2 launched nothing on a GPU: the script computes on the host"):
        run(pool, "steps.py", "host")


def test_a_script_may_mark_its_steps(pool: WorkerPool) -> None:
    found = run(pool, "steps.py", "marked")
    assert played(found) == ["fwd", "bwd", "finish"]
    (last,) = (one for one in found.program.templates.values() if one.name == "finish")
    assert column(last, "name") == ["aten::sub_.Tensor"] * 4


def test_data_loaders_mixed_precision_and_loss_scales(pool: WorkerPool) -> None:
    found = run(pool, "steps.py", "loader")
    kinds = played(found)
    assert kinds[:3] == ["begin", "fwd", "bwd"] and "optimizer" in kinds
    first, forward = (found.program.templates[e.template] for e in found.program.skeleton[:2])
    assert column(first, "op_class").count("copy") == 1  # the batch; its labels follow the model
    assert "float16" in column(forward, "dtype") and found.precision == "float16"


def test_values_are_asked_for_and_can_be_answered(pool: WorkerPool) -> None:
    text = (SCRIPTS / "troubled.py").read_text(encoding="utf-8").splitlines()
    line = 1 + next(number for number, code in enumerate(text) if "float(loss) > 0.5" in code)
    found = run(pool, "troubled.py", "values")
    asked = {(one.site, one.kind, one.answer): times for one, times in found.asked}
    assert asked == {
        (f"troubled.py:{line}", "item", 1.0): 3,  # three steps
        (f"troubled.py:{line + 1}", "share", 1.0): 3,
    }
    other = run(pool, "troubled.py", "values", values=((f"troubled.py:{line}", 0.0), ("nowhere.py:1", 2.0)))
    assert [one.overridden for one, _ in other.asked] == [True]  # the branch is not taken
    assert other.unused == ("nowhere.py:1",)


def test_an_operator_gets_its_shapes_from_a_setup_file(pool: WorkerPool) -> None:
    found = run(pool, "troubled.py", "opaque", setup=SCRIPTS / "shapes.py")
    names = [name for one in found.program.templates.values() for name in column(one, "name")]
    assert "simcore_tests::opaque" in names


@needs_torch
def test_a_traced_script_is_a_graph_folder(tmp_path: Path) -> None:
    target = tmp_path / "small"
    arguments = [
        str(SCRIPTS / "small.py"),
        "fsdp2",
        "--world-size",
        "64",
        "--jobs",
        "1",
        "--out",
        str(target),
    ]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    graph = load_graph(target)
    assert graph.world_size == 64 and sum(program.num_ranks for program in graph.programs) == 64
    held = json.loads((target / "trace.json").read_text(encoding="utf-8"))
    assert held["ranks_run"][0] == 0 and held["ranks_run"][-1] == 63
    assert set(next(iter(held["peak_bytes_by_phase"].values()))) >= {"fwd", "bwd", "optimizer"}
    highest = max(program.memory.peak for program in graph.programs)
    assert max(max(one.values()) for one in held["peak_bytes_by_phase"].values()) == highest
    assert str(tmp_path) not in (target / "graph.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py", "--world-size", "8"], "nowhere.py: no such file"),
        (["-m", "no.where", "--world-size", "8"], "-m no.where: no such module here"),
        ([str(SCRIPTS / "small.py"), "--world-size", "12"], "does not fill nodes of 8"),
        ([str(SCRIPTS / "small.py"), "--world-size", "0"], "world-size: 0 must be at least 1"),
        ([str(SCRIPTS / "small.py"), "--world-size", "8", "--steps", "2:9"], "spans 7 steps"),
        ([str(SCRIPTS / "small.py"), "--world-size", "8", "--steps", "x"], "not A:B"),
        ([str(SCRIPTS / "small.py"), "--world-size", "8", "--steps", "²:³"], "not A:B"),
        ([str(SCRIPTS / "small.py"), "--world-size", "8", "--steps", "9" * 5000], "not A:B"),
        (
            [str(SCRIPTS / "small.py"), "--world-size", "8", "--value", "a.py:1=nan"],
            "not FILE.py:LINE=NUMBER",
        ),
        (
            [str(SCRIPTS / "small.py"), "--world-size", "8", "--hang-s", "nan"],
            "hang-s: nan must be at least 0.25",
        ),
        (
            [str(SCRIPTS / "small.py"), "--world-size", "8", "--max-ranks", "0"],
            "max-ranks: 0 must be at least 1",
        ),
        ([str(SCRIPTS / "small.py"), "--world-size", "8", "--expert-load", "zipf:1e308"], "of 0 to 100"),
        ([str(SCRIPTS / "small.py"), "--world-size", "100000000"], "world-size: 100000000 must be at most"),
        ([str(SCRIPTS / "small.py"), "--world-size", "8", "--value", "a.py=1"], "not FILE.py:LINE=NUMBER"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: list[str], message: str) -> None:
    ran = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "graph")])
    assert ran.exit_code == 2 and message in ran.output and list(tmp_path.iterdir()) == []


def test_steps_and_values() -> None:
    assert parse_steps("2:3") == parse_steps("2") == 2
    assert parse_values(["train.py:42=0.5"]) == (("train.py:42", 0.5),)


def test_groups_that_partition_ranks_alike_are_a_family() -> None:
    name = FamilyNames()
    assert [name("mesh_tp", members) for members in ((0, 1), (2, 3))] == ["tp", "tp"]
    assert name("mesh_tp", (0, 1)) == "tp.2"  # the same ranks again: another communicator
    assert name("", (0, 2)) == name("undefined", (1, 3)) == "group"
    assert name("", (0, 1, 2)) == "group.2"


@given(st.integers(1, 40), st.lists(st.integers(0, 39), max_size=3), st.integers(2, 60))
def test_borders_between_ranks_are_found(world: int, borders: list[int], max_ranks: int) -> None:
    """Ranks along one axis do something else from each border on; the ends must show it."""
    truth = {rank: f"part {sum(rank >= border for border in borders)}" for rank in range(world)}
    search = RankSearch(lambda ranks: {rank: truth[rank] for rank in ranks}, max_ranks)
    search.ends(world)
    found = search.classes(nested_axes((), world))
    assert sorted(found) == list(range(world)) and len(search.hashes) <= max(2, max_ranks)
    if search.assumed == 0:
        assert found == truth
    assert all(found[rank] == truth[rank] for rank in search.hashes)


@pytest.mark.parametrize(
    ("borders", "ran"),
    [
        ([63], [0, 1, 62, 63]),  # the last shard is smaller
        ([62, 63], [0, 1, 61, 62, 63]),  # and the one before it
        ([50], [0, 1, 48, 49, 50, 52, 56, 60, 62, 63]),  # 62, 60, 56, 48; then 52, 50, 49
    ],
)
def test_uneven_shards_are_found_at_the_end(borders: list[int], ran: list[int]) -> None:
    truth = {rank: f"part {sum(rank >= border for border in borders)}" for rank in range(64)}
    search = RankSearch(lambda ranks: {rank: truth[rank] for rank in ranks}, 16)
    search.ends(64)
    assert search.classes(nested_axes((), 64)) == truth
    assert sorted(search.hashes) == ran


@pytest.mark.parametrize(("odd", "ran"), [(None, [0, 1, 2, 4, 6, 7]), (1, [0, 1, 2, 3, 4, 5, 6, 7])])
def test_pipeline_stages_are_all_run(odd: int | None, ran: list[int]) -> None:
    """Four stages of two ranks each: the ends of the first and last speak for the rest, if they agree."""
    axes = nested_axes((2,), 8, lambda axis: axis.stride == 2)
    assert axes == (WorldAxis(2, 1), WorldAxis(4, 2, stages=True))
    truth = {rank: f"stage {rank // 2}" + (" odd" if rank == odd else "") for rank in range(8)}
    search = RankSearch(lambda ranks: {rank: truth[rank] for rank in ranks}, 16)
    search.ends(8)
    assert search.classes(axes) == truth
    assert sorted(search.hashes) == ran


def test_kinds_of_places_speak_for_their_combinations() -> None:
    """TP8 x DP16 x PP8 of which the first of each tensor-parallel group differs: 23 ranks of 1,024."""
    axes = nested_axes((8, 128), 1024, lambda axis: axis.stride == 128)
    truth = {rank: f"stage {rank // 128}" + (" first" if rank % 8 == 0 else "") for rank in range(1024)}
    search = RankSearch(lambda ranks: {rank: truth[rank] for rank in ranks}, 64)
    search.ends(1024)
    assert search.classes(axes) == truth and search.assumed == 0
    # Eight stages, second and last place of the others, the corners, and the second of each further stage.
    assert sorted(search.hashes) == sorted(
        {*range(0, 1024, 128), 1, 7, 8, 120, 127, 903, 1016, 1023, *range(1, 1024, 128)}
    )


@pytest.mark.parametrize(
    ("truth", "pieces", "ran"),
    [
        ("abcadaca", "12113121", range(8)),  # the ends are alike: one in the middle shows it
        ("abbcbbbb", "12111111", range(8)),  # shards are cut across tensors: the second has a piece more
        ("abbbbbbb", "21111111", [0, 1, 7]),  # rows are dealt out: the first has one more
        ("abbbbbbb", "11111111", [0, 1, 7]),  # the first reads its loss
    ],
)
def test_shards_that_are_cut_across_tensors_are_all_run(truth: str, pieces: str, ran: list[int]) -> None:
    held = {rank: {"states": [8] * int(pieces[rank])} for rank in range(8)}
    search = RankSearch(lambda ranks: {rank: truth[rank] for rank in ranks}, 16, held.__getitem__)
    search.ends(8)
    found = search.classes(nested_axes((), 8), flat_shards=True)
    assert "".join(found[rank] for rank in range(8)) == truth
    assert sorted(search.hashes) == list(ran)


def test_shards_of_equal_sizes_are_all_run_where_what_they_update_is_gathered() -> None:
    """As ZeRO-1's: no rank holds more than another, and none between shows that one differs."""
    truth = dict(enumerate("abbcbbbb"))
    search = RankSearch(lambda ranks: {rank: truth[rank] for rank in ranks}, 16)
    search.ends(8)
    assert search.classes(nested_axes((), 8), cut=True) == truth


def test_a_rank_that_disagrees_is_run_and_told_apart() -> None:
    """Four by four ranks; those at place (2, 2) do something else, which neither ends nor lines show."""
    axes = nested_axes((4,), 16)
    truth = {rank: "odd" if rank == 10 else "first" if rank == 0 else "usual" for rank in range(16)}
    search = RankSearch(lambda ranks: {rank: truth[rank] for rank in ranks}, 16)
    search.ends(16)
    assert search.classes(axes)[10] == "usual"
    assert search.settle((9, 10)) == truth
    assert search.settle((9, 10)) is None  # both have been run


def test_unequal_families_are_refused() -> None:
    from workloads.tracing.record.group_families import fit_family

    with pytest.raises(GraphError, match="differ in size"):
        fit_family("tp", [(0, 1), (2, 3, 4)])
