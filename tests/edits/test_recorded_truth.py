"""Recordings edited, against what would have been recorded: simulated programs as profiler traces."""

import gzip
import json

import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.apps.replay.edits import edit_recording
from simcore.errors import InputError
from simcore.graph import apply_kernels
from simcore.report import write_kineto
from simcore.timeline import Timeline
from tests.edits.test_programs import GRAPHS, load
from workloads.edits.recorded.features import Scales, find_features
from workloads.edits.recorded.ratio import renamed
from workloads.imports import import_traces


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Simulates a small GPT, maybe edited: its step time, and its ranks as a profiler would record them."""
    known = {}

    def simulated(name, *edits):
        if (name, edits) not in known:
            folder = tmp_path_factory.mktemp("run")
            arguments = ["run-sim", str(GRAPHS / name), "--cluster", "h800-96", "--out", str(folder / "run")]
            done = CliRunner().invoke(app, [*arguments, *(part for e in edits for part in ("--edit", e))])
            assert done.exit_code == 0, done.output
            known[name, edits] = Timeline.open(folder / "run"), folder
        return known[name, edits]

    return simulated


def recording(timeline, folder):
    if not (folder / "traces").exists():
        (folder / "traces").mkdir()
        write_kineto(timeline, folder / "traces" / "t.json.gz", range(timeline.info.workload.world_size))
    return import_traces([folder / "traces"])


@pytest.mark.parametrize(
    ("edit", "truth"),
    [
        ("layers=8:16", "layers=16"),
        ("layers=8:4", "layers=4"),
        ("num_microbatches=8:16", "num_microbatches=16"),
    ],
)
def test_layers_and_microbatches_of_a_pipeline(run, edit, truth):
    """Four ranks, tp2 pp2, told by kernel names alone; programs edited so equal traced ones within 0.02%."""
    _, (done,) = edit_recording(recording(*run("base")), [edit], None)
    timeline, _ = run("base", truth)
    assert done.after_s == pytest.approx(timeline.info.step_ps / 1e12, rel=2e-3)
    assert abs(done.after_s / done.before_s - 1) > 0.3


JOB = """
model: llama3-8b
parallel: {pp: 2, dp: 2}
training: {global_batch: 12, micro_batch: 1, seq: 1024}
cluster: h100-8
"""


def simulated_job(folder, layers=8, **changes):
    """A described job: gradients are reduced beside its last backward, in buckets that are scaled first."""
    folder.mkdir()
    (folder / "job.yaml").write_text(JOB)
    changes["model__layers"] = layers
    sets = [part for key, value in changes.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]
    done = CliRunner().invoke(
        app,
        [
            "run-sim",
            str(folder / "job.yaml"),
            "--out",
            str(folder / "run"),
            "--set",
            f"model.layers={layers}",
            *sets,
        ],
    )
    assert done.exit_code == 0, done.output
    return Timeline.open(folder / "run"), folder


def test_gradients_reduced_beside_a_backward_part_it_not(tmp_path):
    timeline, folder = simulated_job(tmp_path / "was")
    job = recording(timeline, folder)
    step_s = timeline.info.step_ps / 1e12
    _, (done,) = edit_recording(job, ["schedule=1f1b"], None)
    assert done.after_s == pytest.approx(step_s, rel=2e-3)
    truth, _ = simulated_job(tmp_path / "gpipe", parallel__schedule="gpipe")
    _, (done,) = edit_recording(job, ["schedule=gpipe"], None)
    assert done.after_s == pytest.approx(truth.info.step_ps / 1e12, rel=3e-3)
    truth, _ = simulated_job(tmp_path / "more", training__global_batch=24)
    _, (done,) = edit_recording(job, ["num_microbatches=12"], None)
    assert done.after_s == pytest.approx(truth.info.step_ps / 1e12, rel=1e-2)


def once_a_step(job, rank):
    """Duration in ps by name of what a rank plays once, of communication and of kernels that scale."""
    ops, (first, last) = job.graph.ops, job.graph.template_start[rank : rank + 2].tolist()
    names = [ops.name[row] for row in range(first, last)]
    return {
        name: int(ops.recorded_ps[first + at])
        for at, name in enumerate(names)
        if names.count(name) == 1 and ("RING_SIMPLE" in name or "mul_" in name)
    }


def test_what_runs_once_a_step_follows_the_layers(tmp_path):
    """Stages between reduce in one go behind their last backward, and gather ahead of their first forward."""
    job = recording(*simulated_job(tmp_path / "was", layers=16, parallel__pp=4))
    timeline, folder = simulated_job(tmp_path / "less", parallel__pp=4)
    after, (done,) = edit_recording(job, ["layers=16:8"], None)
    found, truth = (once_a_step(one, 2) for one in (after, recording(timeline, folder)))
    assert len(truth) == 3 and found == pytest.approx(truth, rel=0.02)  # twice that before the edit
    # The last reduction of the first stage takes 3.0 ms in the recording and 4.3 in the job with less layers.
    assert done.after_s == pytest.approx(timeline.info.step_ps / 1e12, rel=1.5e-2)


@pytest.mark.parametrize(
    ("name", "edits", "truth", "within"),
    [
        ("pp4", ["pp=4:2"], ("base",), 0.002),
        ("base", ["pp=2:4"], ("pp4",), 0.002),
        ("base", ["schedule=gpipe"], ("base", "schedule=gpipe"), 0.004),
        ("base", ["schedule=interleaved:2"], ("base", "schedule=interleaved:2"), 0.007),
    ],
)
def test_stages_and_schedules(run, name, edits, truth, within):
    """One rank of each stage recorded (every second of all), backwards told by the autograd engine."""
    timeline, folder = run(name)
    recording(timeline, folder)
    files = [
        folder / "traces" / f"t.rank{rank}.json.gz" for rank in range(0, timeline.info.workload.world_size, 2)
    ]
    _, done = edit_recording(import_traces(files), edits, None)
    assert done[-1].after_s == pytest.approx(run(*truth)[0].info.step_ps / 1e12, rel=within)


@pytest.fixture(scope="module")
def shaped(run):
    """Recordings with shapes, each imported once."""
    known = {}

    def recorded(name):
        if name not in known:
            known[name] = with_shapes(*run(name), load(name))
        return known[name]

    return recorded


def with_shapes(timeline, folder, graph):
    """The exported traces with a framework op around each launch, as ``record_shapes=True`` gives it."""
    kinds = {"float32": "float", "int64": "long int", "bool": "bool"}
    launched = apply_kernels(graph, "megatron")
    recording(timeline, folder)
    (folder / "shaped").mkdir(exist_ok=True)
    for file in sorted((folder / "traces").iterdir()):
        trace = json.loads(gzip.decompress(file.read_bytes()))
        rank = trace["distributedInfo"]["rank"]
        rows = launched.flat_ops(launched.programs[int(launched.program_of_rank[rank])]).row
        on_gpu = {e["args"]["correlation"] for e in trace["traceEvents"] if e.get("cat") == "kernel"}
        for event in [e for e in trace["traceEvents"] if e.get("cat") == "cuda_runtime"]:
            row = int(rows[event["args"]["correlation"] - 1])
            if event["args"]["correlation"] in on_gpu and launched.ops.in_shapes[row]:
                shapes = json.loads(launched.ops.in_shapes[row])
                types = [kinds.get(launched.ops.dtype[row], "float")] * len(shapes)
                args = {"Input Dims": shapes, "Input type": types}
                op = {"cat": "cpu_op", "name": launched.ops.name[row], "args": args}
                trace["traceEvents"].append({**event, **op})
        (folder / "shaped" / file.name.removesuffix(".gz")).write_text(json.dumps(trace))
    return import_traces([folder / "shaped"])


@pytest.mark.parametrize(
    ("name", "edit", "truth", "within"),
    [
        ("base", "ffn=1024:4096", ("base", "ffn=4096"), 0.02),
        ("base", "tp=2:4", ("tp4",), 0.05),
        ("base", "batch.micro=1:2", ("mbs2",), 0.05),
        ("dp2", "dp=2:16", ("dp2", "dp=16"), 0.01),
    ],
)
def test_sizes_and_parallelism_from_shapes(run, shaped, name, edit, truth, within):
    """Kernels of a recording scaled by the cost model: what the program really traced so takes."""
    _, (done,) = edit_recording(shaped(name), [edit], None)
    assert done.after_s == pytest.approx(run(*truth)[0].info.step_ps / 1e12, rel=within)
    assert done.applied.assumed and done.applied.ops_changed > 0


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ("hidden=512", "say what it was: hidden=OLD:512"),
        ("hidden=999:512", "no matrix product has a dimension of 999"),
        ("ffn=999:512", "no product has 999 features"),
        ("tp=2:1", "tp must be at least 2"),
        ("tp=8:16", "no group of 8 neighbouring ranks"),
        ("dp=8:16", "no group has 8 ranks"),
    ],
)
def test_what_the_recording_does_not_show_is_refused(shaped, edit, reason):
    with pytest.raises(InputError) as error:
        edit_recording(shaped("dp2"), [edit], None)
    assert reason in str(error.value)


def test_features_as_many_as_the_hidden_size():
    """An MLP of 4 x hidden over 4 ranks: of hidden by hidden features the right operand's last are inner."""
    products = [((8, 16), (16, 12)), ((8, 16), (16, 16)), ((16, 8), (8, 16)), ((8, 4), (4, 16))]
    found = find_features(products, [(8, 1, 16)], None)
    assert (found.tokens, found.hidden, found.twin) == (8, 16, True)
    assert found.all_inner == {4, 12, 16}
    scales = Scales(inner=dict.fromkeys(found.all_inner, 0.5))
    assert renamed("aten::mm", "[[8, 16], [16, 16]]", found, scales) == "[[8, 16], [16, 8]]"
    assert renamed("aten::mm", "[[8, 16], [16, 12]]", found, scales) == "[[8, 16], [16, 6]]"
    assert renamed("aten::gelu", "[[8, 1, 16]]", found, scales) == "[[8, 1, 8]]"
    assert renamed("aten::native_layer_norm", "[[8, 1, 16]]", found, scales) == "[[8, 1, 16]]"
