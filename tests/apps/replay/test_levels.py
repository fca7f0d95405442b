"""What is predicted anew at each level; times in us."""

import json
import re
from importlib import resources

import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.apps.replay.levels import play_level
from simcore.collectives import NcclPlanner
from simcore.cost import KernelShape, RooflineCost
from simcore.errors import InputError
from simcore.hardware import Topology, load_cluster
from tests.imports.traces import kernel, launched, write
from workloads.imports import import_traces

MIB = 1 << 20
ELEMENTS = 16 * MIB


def all_reduce(called, ts, dur, corr, *, ranks=(0, 1), elements=ELEMENTS, **more):
    args = {
        "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements,
        "Group size": len(ranks), "dtype": "Float", "Process Group Name": "dp",
        "Process Group Ranks": json.dumps(list(ranks)),
    }  # fmt: skip
    return launched("ncclDevKernel_AllReduce", called, ts, dur, corr=corr, stream=20, **args, **more)


def trace(path, events, rank=0, world=2, gpu="NVIDIA A100-SXM4-80GB"):
    header = {"rank": rank, "world_size": world}
    return write(path, events, distributedInfo=header, deviceProperties=[{"name": gpu, "numSms": 108}])


def planned_ps(ranks, elements=ELEMENTS, cluster="a100-8"):
    return NcclPlanner(Topology(load_cluster(cluster, {}))).plan("all_reduce", 4 * elements, ranks).alone_ps


def test_a_missing_peer_is_stood_in_for(tmp_path):
    # The recorded 5 ms hold the wait for a peer; alone on its links the collective takes what NCCL takes.
    path = trace(tmp_path / "t.json", [*launched("a", 0, 8, 20, corr=1), *all_reduce(10, 40, 5000, 2)])
    replay = play_level(import_traces([path]), "communication")
    lasted = int(replay.end_ps[0][1] - replay.start_ps[0][1])
    assert lasted == planned_ps((0, 1))
    assert lasted < 1_000_000_000
    assert any("1 ranks were not recorded" in note for note in replay.notes)
    assert any("of the recorded steps were waits in communication" in note for note in replay.notes)
    assert not any("last as recorded" in doubt for doubt in replay.doubts())
    recorded = play_level(import_traces([path]))
    assert recorded.steps()[0].error == 0
    assert any("last as recorded" in doubt for doubt in recorded.doubts())


def test_a_rank_beyond_any_job_is_refused(tmp_path):
    path = trace(tmp_path / "t.json", all_reduce(0, 10, 5000, 1, ranks=(0, 10**12)))
    with pytest.raises(InputError, match="names rank"):
        play_level(import_traces([path]), "communication")


def test_ranks_far_apart_use_the_network(tmp_path):
    # Ranks 0 and 8 are on two nodes: slower than two in one.
    path = trace(tmp_path / "t.json", all_reduce(0, 10, 5000, 1, ranks=(0, 8)), world=16)
    replay = play_level(import_traces([path]), "communication")
    lasted = int(replay.end_ps[0][0] - replay.start_ps[0][0])
    assert lasted == planned_ps((0, 8), cluster="a100-16") > 2 * planned_ps((0, 1))
    assert replay.graph.world_size == 9


def test_recorded_ranks_meet(tmp_path):
    # Rank 1 comes 1 ms later: rank 0's kernel waits for it.
    events = [
        [*launched("a", 0, 8, 12, corr=1), *all_reduce(10, 30, 1500 + 400, 2)],
        [*launched("a", 0, 8, 1012, corr=1), *all_reduce(10, 1030, 500 + 400, 2)],
    ]
    paths = [trace(tmp_path / f"{rank}.json", found, rank) for rank, found in enumerate(events)]
    replay = play_level(import_traces(paths), "communication")
    ends = [int(end[1]) for end in replay.end_ps]
    starts = [int(start[1]) for start in replay.start_ps]
    assert ends[0] == ends[1] == max(starts) + planned_ps((0, 1))
    assert replay.notes == (
        "collectives on a100-8, as NCCL 2.27.3 runs them",
        "kernels beside communication start from the time of the same kernels alone, where recorded",
    )


def test_the_largest_part_of_an_uneven_exchange_decides(tmp_path):
    def exchange(elements):
        args = {
            "Collective name": "all_to_allv", "In msg nelems": elements, "Out msg nelems": ELEMENTS,
            "Group size": 2, "dtype": "Float", "Process Group Name": "ep", "Process Group Ranks": "[0, 1]",
        }  # fmt: skip
        return launched("ncclDevKernel_SendRecv", 0, 10, 900, corr=1, stream=20, **args)

    sizes = (ELEMENTS // 4, ELEMENTS)
    paths = [trace(tmp_path / f"{rank}.json", exchange(size), rank) for rank, size in enumerate(sizes)]
    replay = play_level(import_traces(paths), "communication")
    planner = NcclPlanner(Topology(load_cluster("a100-8", {})))
    expected = planner.plan("all_to_all", 4 * ELEMENTS, (0, 1)).alone_ps
    lengths = [int(end[0] - start[0]) for start, end in zip(replay.start_ps, replay.end_ps, strict=True)]
    assert lengths == [expected, expected]


def test_what_is_not_known_lasts_as_recorded(tmp_path):
    unknown = launched("ncclDevKernel_SendRecv", 0, 10, 300, corr=1, stream=20)
    path = trace(tmp_path / "t.json", [*unknown, *all_reduce(400, 420, 800, 2)])
    replay = play_level(import_traces([path]), "communication")
    lengths = (replay.end_ps[0] - replay.start_ps[0]).tolist()
    assert lengths == [300_000_000, planned_ps((0, 1))]
    # 300 of 1,100.
    assert any("27% of the communication time lasts as recorded" in note for note in replay.notes)


def test_a_kernel_beside_communication_starts_from_its_time_alone(tmp_path):
    grid = {"grid": [108, 1, 1], "block": [256, 1, 1], "registers per thread": 128}
    alone = launched("sgemm", 0, 10, 100, corr=1, **grid)
    beside = launched("sgemm", 150, 205, 180, corr=3, **grid)
    path = trace(tmp_path / "t.json", [*alone, *all_reduce(150, 200, 5000, 2), *beside])
    replay = play_level(import_traces([path]), "communication")
    lengths = (replay.end_ps[0] - replay.start_ps[0]).tolist()
    assert lengths[0] == 100_000_000
    # Recorded 180.  One block per SM, some of them taken by channels: 100 in one wave, 200 in two.
    assert 100_000_000 < lengths[2] <= 200_000_000


def test_kernels_of_one_name_that_do_different_work_say_nothing_of_each_other(tmp_path):
    # No grid, as on AMD: 20 and 100 alone cannot tell what the 180 beside communication would be alone.
    alone = [*launched("gemm", 0, 10, 20, corr=1), *launched("gemm", 20, 35, 100, corr=4)]
    beside = launched("gemm", 150, 205, 180, corr=3)
    path = trace(tmp_path / "t.json", [*alone, *all_reduce(150, 200, 5000, 2), *beside])
    replay = play_level(import_traces([path]), "communication")
    assert (replay.end_ps[0] - replay.start_ps[0]).tolist()[3] == 180_000_000


HALF = "c10::BFloat16"


def op(name, dims, types, ts, dur):
    args = {"Input Dims": dims, "Input type": types}
    return {
        "ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": 1, "ts": ts, "dur": dur, "args": args,
    }  # fmt: skip


def product_and_sum(path, *, product_us, sum_us, gpu="NVIDIA A100-SXM4-80GB"):
    """Products and sums whose shapes are recorded, and 70 us of an op that nobody knows."""
    add_at, secret_at = 10 + product_us, 10 + product_us + sum_us
    events = [
        op("aten::linear", [[4096, 1024], [2048, 1024], []], [HALF, HALF, ""], 0, 20),
        op("aten::mm", [[4096, 1024], [1024, 2048]], [HALF, HALF], 1, 10),  # the inner op counts
        *launched("gemm", 2, 10, product_us, corr=1),
        op("aten::add", [[1024, 8192], [8192], []], [HALF, HALF, "Scalar"], 30, 10),
        *launched("elementwise", 32, add_at, sum_us, corr=2),
        op("mine::secret", [[10]], ["float"], 50, 10),
        *launched("secret", 52, secret_at, 70, corr=3),
    ]
    return trace(path, events, world=1, gpu=gpu)


def priced_us(cluster="a100-8"):
    """What the product and the sum take by their formulas."""
    cost = RooflineCost(load_cluster(cluster, {}).gpu)
    gemm = KernelShape(
        "aten::mm", "gemm", "bfloat16", ((4096, 1024), (1024, 2048)), ((4096, 2048),), 2 * 4096 * 1024 * 2048
    )
    added = 1024 * 8192 * 2
    add = KernelShape(
        "aten::add", "elementwise", "bfloat16", ((1024, 8192), (8192,)), ((1024, 8192),), 0,
        added + 8192 * 2, added,
    )  # fmt: skip
    return [1e6 * cost.seconds(shape) for shape in (gemm, add)]


def lengths_us(replay):
    return ((replay.end_ps[0] - replay.start_ps[0]) / 1e6).tolist()


def test_kernels_are_priced_from_shapes(tmp_path):
    product, added = priced_us()  # recorded ones are 10% longer
    path = product_and_sum(tmp_path / "t.json", product_us=1.1 * product, sum_us=1.1 * added)
    replay = play_level(import_traces([path]), "shapes")
    assert lengths_us(replay) == pytest.approx([product, added, 70], rel=0.01)
    part = 1.1 * (product + added) / (1.1 * (product + added) + 70)
    said = f"{part:.0%} of the kernel time is priced from shapes, {1 - part:.0%} lasts as recorded"
    assert any(said in note for note in replay.notes)
    assert replay.origins["fitted"] == pytest.approx(part, rel=1e-3)


def test_a_class_that_is_mispriced_lasts_as_recorded(tmp_path):
    product, added = priced_us()  # products took 1.5 times their price: 33% off
    path = product_and_sum(tmp_path / "t.json", product_us=1.5 * product, sum_us=1.1 * added)
    replay = play_level(import_traces([path]), "shapes")
    assert lengths_us(replay) == pytest.approx([1.5 * product, added, 70], rel=0.01)
    part = 1.5 * product / (1.5 * product + 1.1 * added + 70)
    said = f"so they last as recorded: gemm ({part:.0%} of the kernel time, 33% off)"
    assert any(said in note for note in replay.notes)


def test_where_all_classes_are_mispriced_nothing_is_predicted(tmp_path):
    path = product_and_sum(tmp_path / "t.json", product_us=9000, sum_us=9000)
    with pytest.raises(InputError, match="every class of kernels is priced more than 25% off"):
        play_level(import_traces([path]), "shapes")
    untold = trace(tmp_path / "u.json", launched("a", 2, 10, 40, corr=1), world=1)
    with pytest.raises(InputError, match="no kernel has recorded shapes"):
        play_level(import_traces([untold]), "shapes")


def test_another_gpu_prices_what_the_recorded_one_prices_well(tmp_path):
    # Recorded on an A100 as it prices them; the H100's prices are not compared with those times.
    product, added = priced_us()
    path = product_and_sum(tmp_path / "t.json", product_us=product, sum_us=1.5 * added)
    replay = play_level(import_traces([path]), "shapes", "h100-8")
    assert lengths_us(replay) == pytest.approx([priced_us("h100-8")[0], 1.5 * added, 70], rel=0.01)
    unknown = product_and_sum(tmp_path / "u.json", product_us=900, sum_us=900, gpu="Sohu 1")
    assert any(
        "has no profile" in note for note in play_level(import_traces([unknown]), "shapes", "h100-8").notes
    )


def test_one_op_of_two_kernels_keeps_their_proportion(tmp_path):
    product = priced_us()[0]  # recorded as long, in parts of 3 and 1
    events = [
        op("aten::mm", [[4096, 1024], [1024, 2048]], [HALF, HALF], 0, 30),
        *launched("splitk", 2, 10, 0.75 * product, corr=1),
        *launched("reduce", 4, 10 + 0.75 * product, 0.25 * product, corr=2),
    ]
    replay = play_level(import_traces([trace(tmp_path / "t.json", events, world=1)]), "shapes")
    first, second = (replay.end_ps[0] - replay.start_ps[0]).tolist()
    assert first / second == pytest.approx(3, rel=0.01)


def test_what_cannot_be_done(tmp_path):
    path = trace(tmp_path / "t.json", all_reduce(0, 10, 500, 1), gpu="AMD Instinct MI250X")
    job = import_traces([path])
    with pytest.raises(InputError, match="no profile of the recorded GPU 'AMD Instinct MI250X'"):
        play_level(job, "communication")
    with pytest.raises(InputError, match="unknown level 'shape'; did you mean 'shapes'"):
        play_level(job, "shape")
    with pytest.raises(InputError, match="needs --level"):
        play_level(job, "recorded", "h100-8")
    far = trace(tmp_path / "far.json", all_reduce(0, 10, 500, 1, ranks=(0, 99)), world=100)
    with pytest.raises(InputError, match="100 ranks, cluster 'h100-8' 8 GPUs"):
        play_level(import_traces([far]), "communication", "h100-8")
    found = CliRunner().invoke(
        app, ["replay", str(path), "--level", "communication", "--cluster", "h100-8", "--json"]
    )
    assert found.exit_code == 0
    (row,) = json.loads(found.stdout)["steps"]
    assert row["predicted_s"] < row["recorded_s"]


def test_the_engine_of_copies_is_the_recording(tmp_path):
    copies = [kernel("Memcpy HtoD (Pinned -> Device)", 10, 50, stream=s, cat="gpu_memcpy") for s in range(9)]
    replay = play_level(import_traces([trace(tmp_path / "t.json", copies, world=1)]), "communication")
    assert replay.steps()[0].replayed.span == pytest.approx(50e-6)


def test_hardware_that_none_has_is_taken_by_force(tmp_path):
    path = trace(tmp_path / "t.json", all_reduce(0, 10, 5000, 1))
    profile = resources.files("hardware_profiles").joinpath("cluster/a100.toml").read_text(encoding="utf-8")
    fast = tmp_path / "fast.toml"
    fast.write_text(re.sub(r"(nvlink_latency_s = \{ value = )[0-9.]+", r"\g<1>1e-9", profile))
    told = "1e-15 s is less than hardware has"
    asked = ["replay", str(path), "--json", "--out", str(tmp_path / "out")]
    for words in (["--level", "communication", "--cluster", str(fast)], ["--edit", f"network={fast}"]):
        found = CliRunner().invoke(app, [*asked, *words])
        assert found.exit_code == 2
        assert f"nvlink_latency_s = {told}" in " ".join(found.output.split())
        found = CliRunner().invoke(app, [*asked, *words, "--force"])
        assert found.exit_code == 0
        said = json.loads((tmp_path / "out" / "run.json").read_text())["assumptions"]
        said += [line for edit in json.loads(found.stdout)["edits"] for line in edit["assumed"]]
        assert [line for line in said if re.match(f"cluster.nvlink_latency_s: {told}.*by force", line)]


def test_eighty_columns_cut_no_number(tmp_path):
    calls = [part for k in range(3) for part in all_reduce(k, 20_000 * k + 10, 12_920.2, k + 1)]
    path = trace(tmp_path / "t.json", calls)
    for words in ([], ["--level", "communication", "--cluster", "h100-8"]):
        found = CliRunner().invoke(app, ["replay", str(path), *words], env={"COLUMNS": "80"})
        assert found.exit_code == 0, found.output
        assert "…" not in found.output and "38.76 ms" in found.output  # 3 x 12,920.2 us
        assert all(len(line) <= 80 for line in found.output.splitlines())
