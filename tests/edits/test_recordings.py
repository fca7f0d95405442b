"""Edits of recordings written by hand; times in us, arithmetic in comments."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.apps.replay.edits import edit_recording, nccl_planner
from simcore.errors import InputError
from tests.imports.traces import call, kernel, launched, step, sync_record, write
from workloads.edits import EditableJob, apply_edit
from workloads.edits.kernels.classes import cuda_class
from workloads.imports import import_traces

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def one_stream(tmp_path, **header):
    """One stream, GPU-bound: a gemm 18..58, two elementwise kernels 59..69 and 70..90, a copy 91..95."""
    events = [
        step(1, 0, 200),
        *launched("ampere_sgemm_128x64_tn", 10, 18, 40, corr=1),
        *launched("vectorized_elementwise_kernel<4, add>", 12, 59, 10, corr=2),
        *launched("vectorized_elementwise_kernel<4, mul>", 14, 70, 20, corr=3),
        *launched("Memcpy DtoD", 16, 91, 4, corr=4, cat="gpu_memcpy", bytes=100),
    ]
    return import_traces([write(tmp_path / "t.json", events, **header)])


def spans_us(job, *edits):
    """Step time before the first edit and after each."""
    _, steps = edit_recording(job, edits, None)
    return [1e6 * steps[0].before_s, *(1e6 * one.after_s for one in steps)]


@pytest.mark.parametrize(
    ("edits", "after"),
    [
        (["kernel.sgemm.speed=2"], [57]),  # 77 less half of 40
        # The next launch, called at 12, reaches the GPU at 20 only: 2 + 1 + 10 + 1 + 20 + 1 + 4.
        (["class.gemm.speed=inf"], [39]),
        (["class.elementwise.speed=4"], [54.5]),  # 30 -> 7.5
        (["class.copy.speed=0.5"], [81]),  # a slower copy: 4 -> 8
        (["remove.elementwise"], [45]),  # 30 and the gaps of 1 before each go
        # One kernel that lasts as long as the longer, after the first one's gap: 40 + 1 + 20 + 1 + 4.
        (["fuse=elementwise"], [66]),
        (["kernel.sgemm.speed=2", "kernel.sgemm.speed=2", "remove.add"], [57, 47, 36]),  # in the order given
    ],
)
def test_kernels(tmp_path, edits, after):
    assert spans_us(one_stream(tmp_path), *edits) == pytest.approx([77, *after])


def test_an_edit_leaves_the_job_it_was_given(tmp_path):
    job = one_stream(tmp_path)
    before = job.graph.ops.recorded_ps.copy()
    edited, _ = edit_recording(job, ["class.gemm.speed=2", "remove.add"], None)
    assert (job.graph.ops.recorded_ps == before).all()
    assert (edited.graph.ops.recorded_ps != before).any()


def host_bound(tmp_path):
    """Launches every 20 us of kernels of 5 us: at 10, 30, 50, and at 90 after a synchronisation 54..60."""
    events = [
        *launched("a", 10, 18, 5, corr=1),
        *launched("b", 30, 38, 5, corr=2),
        *launched("c", 50, 58, 5, corr=3),
        call("cudaDeviceSynchronize", 54, 11, corr=5),
        *launched("d", 90, 98, 5, corr=4),
    ]
    return import_traces([write(tmp_path / "t.json", events)])


def test_host(tmp_path):
    job = host_bound(tmp_path)
    before, twice, boundless = spans_us(job, "host.speed=2", "host.speed=inf")
    assert before == pytest.approx(85)
    # Launches 10 apart, so c ends at 18 + 20 + 5; then 25 instead of (90 - 65 =) 25 / 2 after the wake-up.
    assert twice < 55 and boundless < twice
    # Nothing between launches: three kernels one after the other (15), then the host's time after the wait.
    graphs = spans_us(job, "cuda_graphs=on")[1]
    assert boundless < graphs < before - 20
    assert spans_us(job, "launch_overhead_us=0")[1] < before


def four_ranks(tmp_path, slow=2):
    """Four ranks: a gemm of 10 us (rank ``slow``: 30), an all_reduce of 16 MiB that moves data for 20 us."""
    paths = []
    waits = {"stream": 20, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2}
    for rank in range(4):
        length = 30 if rank == slow else 10
        start = 18 + length + 1
        events = [
            step(1, 0, 200),
            *launched("sgemm", 10, 18, length, corr=1),
            call("cudaEventRecord", 12, 1, corr=2),
            call("cudaStreamWaitEvent", 13, 1, corr=3),
            sync_record("Stream Wait Event", 3, **waits),
            call("cudaLaunchKernelExC", 15, 2, corr=4),
            kernel(
                ALL_REDUCE, start, 69 - start, stream=20, corr=4,
                **{"Collective name": "allreduce", "In msg nelems": 2**23, "Out msg nelems": 2**23,
                   "dtype": "BFloat16", "Group size": 4, "Process Group Name": "0",
                   "Process Group Ranks": "[0, 1, 2, 3]"},
            ),
        ]  # fmt: skip
        header = {
            "distributedInfo": {"rank": rank, "world_size": 4},
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}],
        }
        paths.append(write(tmp_path / f"r{rank}.json", events, **header))
    return import_traces(paths)


def test_removing_a_straggler(tmp_path):
    before, after = spans_us(four_ranks(tmp_path), "straggler.2=remove")
    # 30 + 1 + 20 with it; the median of the others' gemms is 10.
    assert (before, after) == pytest.approx((51, 31))


def test_communication_at_once_or_not_at_all(tmp_path):
    job = four_ranks(tmp_path)
    # The slow rank's gemm ends after 30, all others wait for it; without communication nobody waits.
    assert spans_us(job, "class.communication.speed=inf")[1] == pytest.approx(31)
    assert spans_us(job, "remove.communication")[1] == pytest.approx(30)
    assert spans_us(job, "network.bandwidth=2")[1] == pytest.approx(41)


def test_another_network_gives_the_planned_time(tmp_path):
    job = four_ranks(tmp_path, slow=-1)
    from simcore.hardware import load_cluster

    plan = nccl_planner(load_cluster("v100", {})).plan("all_reduce", 2**24, (0, 1, 2, 3))
    before, after = spans_us(job, "network=v100")
    assert before == pytest.approx(10 + 1 + 40)
    assert after - 11 == pytest.approx(plan.alone_ps / 1e6)


def test_another_gpu_scales_by_what_bounds_a_class(tmp_path):
    from simcore.hardware import load_gpu

    old, new = (load_gpu(name).under_load(1) for name in ("a100-80", "h200"))
    job = one_stream(tmp_path, deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}])
    flops = old.peak_flops["bf16"] * old.gemm_efficiency / (new.peak_flops["bf16"] * new.gemm_efficiency)
    memory = old.hbm_bytes_per_s * old.hbm_efficiency / (new.hbm_bytes_per_s * new.hbm_efficiency)
    assert spans_us(job, "gpu=h200")[1] == pytest.approx(40 * flops + 30 * memory + 7)


def test_another_gpu_prices_kernels_whose_op_and_shapes_were_recorded(tmp_path):
    from simcore.cost import RooflineCost
    from simcore.cost.kernel import KernelShape
    from simcore.hardware import load_gpu

    def ratio(rows):
        """A sum of two float32 matrices of this many rows of 1,024, four bytes of each read, four written."""
        shape = (rows, 1024)
        size = 4 * rows * 1024
        added = KernelShape(
            "aten::add", "elementwise", "float32", (shape, shape), (shape,), 0, 2 * size, size
        )
        new, old = (RooflineCost(load_gpu(name).under_load(1)).seconds(added) for name in ("h200", "a100-80"))
        return new / old

    def op(rows, ts):
        dims = {"Input Dims": [[rows, 1024], [rows, 1024], []], "Input type": ["float", "float", "Scalar"]}
        return {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 9, "tid": 1, "ts": ts, "dur": 3,
                "args": dims}  # fmt: skip

    large, small = 1 << 17, 1
    events = [
        step(1, 0, 2000), op(large, 9), op(small, 13),
        *launched("vectorized_elementwise_kernel<4, add>", 10, 18, 1000, corr=1),
        *launched("vectorized_elementwise_kernel<4, add>", 14, 1019, 4, corr=2),
    ]  # fmt: skip
    device = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
    job = import_traces([write(tmp_path / "t.json", events, deviceProperties=device)])
    assert spans_us(job, "gpu=h200")[1] == pytest.approx(1000 * ratio(large) + 1 + 4 * ratio(small))
    assert ratio(large) < 0.5 < 0.6 < ratio(small)  # the bandwidths, and what a launch takes on either


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ("kernl.x.speed=2", "did you mean 'kernel.<regex>.speed'?"),
        ("kernel.sgem.speed=fast", "'fast' is not a number"),
        ("kernel.sgemm.speed=0", "must be a positive number"),
        ("kernel.sgemm.speed", "needs a value"),
        ("kernel.(.speed=2", "no regular expression"),
        ("kernel.hgemm.speed=2", "no kernel matches 'hgemm'"),
        ("class.gem.speed=2", "did you mean 'gemm'?"),
        ("class.conv.speed=2", "no kernel of class 'conv'; classes here: copy, elementwise, gemm"),
        ("fuse=sgemm", "no two kernels that follow each other"),
        ("straggler.7=remove", "no rank '7'"),
        ("straggler.0=remove", "at least 2 other ranks"),
        ("remove.communication=maybe", "takes no value"),
        ("remove.communication", "has no communication"),
        ("gpu=h2000", "did you mean 'h200'?"),
        ("gpu=h200", "the GPU of the recording is not recorded"),
        ("network=h10", "did you mean 'h100'?"),
        ("pp=4", "no sends or receives between stages are recorded"),
        ("virtual_stages=2", "a recorded job cannot be edited so, only: "),
        ("=4", "expected KEY=VALUE"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, edit, reason):
    job = one_stream(tmp_path)
    with pytest.raises(InputError) as error:
        edit_recording(job, [edit], None)
    assert reason in str(error.value)


def test_the_command_says_what_changed(tmp_path):
    one_stream(tmp_path)
    arguments = ["replay", str(tmp_path / "t.json"), "--edit", "class.gemm.speed=2", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (change,) = json.loads(result.stdout)["edits"]
    assert (change["key"], change["value"], change["ops_changed"]) == ("class.gemm.speed", "2", 1)
    assert change["step_time_before_s"] == pytest.approx(77e-6)
    assert change["step_time_after_s"] == pytest.approx(57e-6)
    assert change["assumed"]


def test_kernels_are_scaled_exactly(tmp_path):
    job = one_stream(tmp_path)
    editable = EditableJob("recorded", job.graph, job.ranks)
    for factor in (3, 7):
        done = apply_edit(editable, "kernel.elementwise.speed", str(factor)).job.graph.ops
        rows = np.array(["elementwise" in name for name in done.name.tolist()])
        expected = np.rint(job.graph.ops.recorded_ps[rows] / factor)
        assert (done.recorded_ps[rows] == expected).all()
        assert (done.recorded_ps[~rows] == job.graph.ops.recorded_ps[~rows]).all()


def test_edited_kernels_beside_simulated_communication(tmp_path):
    job = four_ranks(tmp_path)

    def seconds(*edits):
        _, steps = edit_recording(job, ["class.gemm.speed=1", *edits], None, "communication", "a100-16")
        return [1e6 * one.after_s for one in steps]

    # The slow rank's gemm lasts 30 us and all wait for it; three times as fast, it saves 20.
    same, faster = seconds("class.gemm.speed=3")
    assert same - faster == pytest.approx(20, abs=0.1)
    with pytest.raises(InputError, match="--level communication simulates"):
        seconds("network.bandwidth=2")


def test_collectives_of_unknown_groups_are_of_the_whole_world(tmp_path):
    meta = {
        "Collective name": "allreduce",
        "In msg nelems": 2**23,
        "Out msg nelems": 2**23,
        "dtype": "BFloat16",
    }
    events = launched(ALL_REDUCE, 1, 10, 500, corr=1, **meta)
    header = {"distributedInfo": {"rank": 0, "world_size": 8}}
    job = import_traces([write(tmp_path / "t.json", events, **header)])
    from simcore.hardware import load_cluster

    plan = nccl_planner(load_cluster("v100", {})).plan("all_reduce", 2**24, tuple(range(8)))
    _, (done,) = edit_recording(job, ["network=v100"], None)
    assert 1e12 * done.after_s == pytest.approx(plan.alone_ps, rel=1e-6)
    assert any("taken to be of all 8 ranks" in text for text in done.applied.assumed)


@pytest.mark.parametrize(
    ("name", "op_class"),
    [
        ("sm80_xmma_wgrad_implicit_gemm", "conv"),
        ("wgrad_gemm_accum_fp32", "gemm"),  # a linear layer's, of apex
        ("aten::mm", "gemm"),
        ("ampere_bf16_s16816gemm_bf16_128x64", "gemm"),
        ("fused_moe_kernel", "gemm"),
        ("_fwd_kernel_flash_attn", "attention_fwd"),
        ("BatchPrefillWithRaggedKVCacheKernel", "attention_fwd"),
        ("void vllm::reshape_and_cache_flash_kernel", "copy"),
        ("void vllm::rotary_embedding_kernel", "elementwise"),
        ("void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>", "elementwise"),
        ("void vllm::rms_norm_kernel", "norm_fwd"),
        ("void at::native::GammaBetaBackwardCUDAKernel", "norm_bwd"),
    ],
)
def test_classes_of_kernels_by_name(name, op_class):
    assert cuda_class(name) == op_class
