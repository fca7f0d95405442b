"""Edits of traced programs, compared with programs that were traced as they are edited to be.

The small programs in ``graphs/`` are a GPT of 8 layers, tp2 pp2 dp1, and what one change makes of it; each
says in ``graph.json`` (``command``) how it was traced.
"""

import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.apps.run.edits import traced_job
from simcore.collectives import NcclPlanner
from simcore.cost import RooflineCost
from simcore.engine.shortcuts import simulate
from simcore.errors import InputError
from simcore.graph import Graph, OpKind, apply_kernels, load_graph, verify
from simcore.hardware import Topology, load_cluster
from workloads import catalog
from workloads.edits import EditableJob, apply_edit
from workloads.edits.described.description import described

DP8, DP64, DP1024 = (f"scale-gpt-175b-pp16-tp8-dp{dp}" for dp in (8, 64, 1024))
PP12 = "scale-gpt-175b-pp12-tp8-dp1"
GRAPHS = Path(__file__).parent / "graphs"


def load(name: str) -> Graph:
    """A graph of the catalog, or one of the small ones, as a build of Megatron launches it."""
    return apply_kernels(traced(name), "megatron")


def traced(name: str) -> Graph:
    return load_graph(GRAPHS / name if (GRAPHS / name).is_dir() else catalog.path(name))


def job(name: str) -> EditableJob:
    return traced_job(traced(name), load_cluster("h800-96", {}), "megatron", "ieee")


def edited(name: str, *edits: str) -> Graph:
    state = job(name)
    for key, _, value in (one.partition("=") for one in edits):
        state = apply_edit(state, key, value).job
    verify(state.graph)
    return state.graph


def facts(graph: Graph) -> dict:
    """By stage, of all of its rank classes: flops, kernels, and every communication op, counted."""
    ops, found = graph.ops, defaultdict(list)
    for program in graph.programs:
        rows = graph.flat_ops(program).row
        comm = rows[np.isin(ops.kind[rows], (OpKind.COLLECTIVE, OpKind.SEND, OpKind.RECV))]
        named = Counter(
            (ops.phase[r], ops.name[r], ops.stream[r], ops.group[r], int(ops.num_bytes[r])) for r in comm
        )
        kernels = int((ops.kind[rows] == OpKind.COMPUTE).sum())
        found[program.stage].append((int(ops.flops[rows].sum()), kernels, named))
    return found


def groups(graph: Graph) -> dict:
    """Members of the groups that communicate, by name and rank."""
    used = {graph.ops.group[row] for row in np.flatnonzero(graph.ops.group.codes >= 0)} - {""}
    ranks = range(0, graph.world_size, max(1, graph.world_size // 64))
    return {
        name: [graph.groups[name].ranks_of(rank) for rank in ranks]
        for name in used if name != "embd" and graph.groups[name].size > 1
    }  # fmt: skip


def traffic(graph: Graph) -> int:
    """Bytes that kernels of all ranks read and write."""
    per_row = graph.ops.bytes_read + graph.ops.bytes_written
    return sum(
        int(per_row[graph.flat_ops(program).row].sum()) * program.num_ranks for program in graph.programs
    )


@pytest.mark.parametrize(
    ("start", "edits", "truth"),
    [
        ("base", ["pp=4"], "pp4"),
        ("pp4", ["pp=2"], "base"),
        ("base", ["tp=4"], "tp4"),
        ("tp4", ["tp=2"], "base"),
        ("base", ["hidden=512", "ffn=2048"], "hidden512"),
        ("hidden512", ["ffn=1024", "hidden=256"], "base"),
        ("base", ["dp=2"], "dp2"),
        ("dp2", ["dp=1"], "base"),
        ("base", ["num_microbatches=24", "layers=16", "layers=8", "num_microbatches=8"], "base"),
        ("dp2", ["pp=4", "tp=4", "dp=1", "tp=2"], "pp4"),
        ("mbs2", ["batch.micro=1"], "base"),
        # Megatron's gradient buckets grow with dp: 20 and 19 of them in the first stage.
        (DP8, ["dp=64"], DP64),
        (PP12, ["pp=16", "dp=8"], DP8),
    ],
)
def test_an_edited_program_is_the_traced_one(start, edits, truth):
    made, truth = edited(start, *edits), load(truth)
    assert groups(made) == groups(truth)
    assert made.workload.dims == truth.workload.dims
    assert made.workload.tokens_per_step == truth.workload.tokens_per_step
    mine, theirs = facts(made), facts(truth)
    assert mine.keys() == theirs.keys()
    for stage, classes in theirs.items():
        assert all(one == mine[stage][0] for one in classes)
    # What lives through the step follows the parameters.
    held, traced_held = (
        {program.stage: program.memory.static for program in graph.programs} for graph in (made, truth)
    )
    assert held == pytest.approx(traced_held, rel=1e-2)
    # Masks of dropout: written by the kernel, not always by the one that traced ops are mapped to.
    assert traffic(made) == pytest.approx(traffic(truth), rel=1e-2)


def test_step_times_are_those_of_the_traced_program():
    cluster = load_cluster("h800-96", {})

    def step_ps(graph: Graph) -> int:
        topology = Topology(cluster)
        return simulate(graph, topology, RooflineCost(cluster.gpu), NcclPlanner(topology)).step_ps

    for edit, truth in (
        ("pp=4", "pp4"), ("tp=4", "tp4"), ("dp=2", "dp2"), ("batch.micro=2", "mbs2"),
        ("num_microbatches=8", "base"),
    ):  # fmt: skip
        assert step_ps(edited("base", edit)) == pytest.approx(step_ps(load(truth)), rel=5e-4)


def test_a_bucket_of_every_size_is_reduced_once():
    # 1,024 replicas: buckets of 1,024 M elements, so 2 of them; in all, each parameter once.
    graph = edited(DP8, "dp=1024")
    first = next(program for program in graph.programs if program.stage == 0)
    rows = graph.flat_ops(first).row
    sizes = graph.ops.num_bytes[rows[graph.ops.group.equals("dp")[rows]]]
    assert sizes.tolist() == [4229283840, 1623797760]
    assert sizes.sum() == 4 * 1463270400


def test_layers_are_linear():
    def flops(count: int) -> int:
        return sum(found[0][0] for found in facts(edited("base", f"layers={count}")).values())

    assert flops(16) - flops(8) == 2 * (flops(8) - flops(4)) > 0


@pytest.mark.parametrize("order", ["gpipe", "interleaved:2", "interleaved:4", "1f1b"])
def test_schedules_do_the_same_work(order):
    before, after = load("base"), edited("base", "num_microbatches=12", f"schedule={order}")
    flops = [sum(found[0][0] for found in facts(graph).values()) for graph in (before, after)]
    assert flops[1] * 8 == flops[0] * 12
    chunks = int(order.partition(":")[2] or 1)
    assert all(len(program.layer_offset) == chunks for program in after.programs)


@pytest.mark.parametrize(
    ("start", "edits", "reason"),
    [
        (PP12, ["pp=7"], "96 layers do not divide into 7 stages x 1 chunks; nearest: 91 or 98 layers"),
        (PP12, ["tp=7"], "tp=7 does not divide 96 attention heads; nearest: tp=6 or 8"),
        (PP12, ["hidden=12000"], "multiple of head size 128 x tp 8, such as 12288"),
        (PP12, ["ffn=49153"], "ffn 49153 is not divisible by tp 8, such as 49152"),
        (PP12, ["layers=90.5"], "must be a whole number, such as 90"),
        (PP12, ["schedule=interleaved:3"], "16 microbatches are no multiple of 12 stages"),
        (PP12, ["schedule=1f1"], "use 1f1b, gpipe, interleaved"),
        ("base", ["class.gemm.speed=2", "pp=4"], "give it before edits of kernels"),
        ("gpt-70b-pp12-tp4-dp2", ["pp=10"], "stages with unequal numbers of layers"),
        (PP12, ["straggler.0=remove"], "a traced job cannot be edited so, only: "),
    ],
)
def test_what_makes_no_sense_is_refused(start, edits, reason):
    state = job(start)
    with pytest.raises(InputError) as error:
        for key, _, value in (one.partition("=") for one in edits):
            state = apply_edit(state, key, value).job
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("start", "edits", "dims"),
    [
        ("base", ["pp=1"], {"dp": 1, "pp": 1, "tp": 2}),
        ("base", ["tp=1", "dp=4"], {"dp": 4, "pp": 2, "tp": 1}),
        ("base", ["schedule=interleaved:2", "pp=4"], {"dp": 1, "pp": 4, "tp": 2}),
        (DP8, ["layers=48"], {"dp": 8, "pp": 16, "tp": 8}),  # buckets of fewer layers
    ],
)
def test_a_description_knows_what_no_traced_op_shows(start, edits, dims):
    assert edited(start, *edits).workload.dims == dims


def test_programs_that_no_description_gives_again_are_refused():
    cluster = load_cluster("h800-96", {})
    experts = load_graph(Path(__file__).parents[1] / "models/graphs/experts")
    for graph, kernels, reason in (
        (experts, "megatron", "does not give it again: on a rank of stage 0 321 kernels, generated 235"),
        (traced("base"), "unfused", "set workload.kernels to megatron, flash or cudnn"),
    ):
        with pytest.raises(InputError, match=reason):
            apply_edit(traced_job(graph, cluster, kernels, "ieee"), "dp", "8")


def test_the_command_says_what_changed(tmp_path):
    arguments = ["run-sim", str(GRAPHS / "base"), "--out", str(tmp_path / "run"), "--json"]
    edits = ["--edit", "pp=4", "--edit", "class.communication.speed=inf"]
    result = CliRunner().invoke(app, [*arguments, *edits])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    regrouped, free = shown["edits"]
    assert (regrouped["key"], regrouped["value"], shown["gpus"]) == ("pp", "4", 8)
    assert regrouped["step_time_after_s"] == free["step_time_before_s"] > free["step_time_after_s"]
    assert free["step_time_after_s"] == shown["step_time_s"]
    # Layers on twice the stages: (8 + 3) rounds of half the work for (8 + 1), 11 / 18 of the time or more.
    assert 11 / 18 < regrouped["step_time_after_s"] / regrouped["step_time_before_s"] < 0.7


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("num_microbatches", "1e9", "1000000000 microbatches are more than can be simulated; nearest: 65536"),
        ("num_microbatches", "9" * 5000, "must be "),
        ("layers", "1000000000", "model.layers = 1000000000: is more than can be simulated; nearest: 4096"),
        ("pp", "1e9", "parallel.pp = 1000000000: is more than can be simulated"),
        ("dp", "1e9", "parallel.dp = 1000000000: is more than can be simulated"),
        ("batch.micro", "1e9", "training.micro_batch = 1000000000: is more than can be simulated"),
        ("class.gemm.speed", "1e-300", "must be 0.0001 to 1e.06, or inf"),
        ("kernel.gemm.speed", "1.8e308", "must be a positive number"),
        ("host.speed", "1e-300", "must be 0.0001 to 1e.06, or inf"),
        ("launch_overhead_us", "1e300", "must be at most 10000 us"),
        ("kernel.(a+)+b.speed", "2", "no kernel matches"),
        ("kernel.(?=a).speed", "2", "no regular expression"),
    ],
)
def test_absurd_edits_are_refused_at_once(key, value, reason):
    with pytest.raises(InputError, match=reason) as refused:
        apply_edit(job("base"), key, value)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("change", [{"layers": 2**70}, {"hidden": -1}, {"heads": 0}, {"ep": "two"}])
def test_a_graph_that_says_what_no_model_has_is_refused(change):
    graph = load("base")
    workload = replace(graph.workload, model={**graph.workload.model, **change})
    with pytest.raises(InputError, match="is no Megatron GPT program as it says"):
        described(workload, "megatron")
