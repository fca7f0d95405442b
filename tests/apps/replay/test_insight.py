"""What a replayed step consists of; times in us, arithmetic in comments."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.apps.replay.categories import category
from simcore.apps.replay.explain import AFTER
from simcore.apps.replay.insight import occupied_share, step_insights, utilisation
from simcore.apps.replay.path import COMPUTE, GAP, HOST
from simcore.apps.replay.play import play
from simcore.units import PS_PER_MS
from tests.imports.traces import call, launched, step, sync_record, write
from workloads.imports import import_traces
from workloads.imports.recording.occupancy import blocks_per_sm

A100 = {
    "id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "numSms": 108,
    "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 167936,
}  # fmt: skip


def insights(path, **options):
    replay = play(import_traces([path], **options))
    steps = replay.steps()
    return replay, steps, step_insights(replay, steps)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ampere_sgemm_128x64_nn", "gemm/conv"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "gemm/conv"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64", "gemm/conv"),
        ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", "gemm/conv"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>", "attention"),
        ("void vllm::paged_attention_v2_kernel<uint16_t>", "attention"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", "optimizer"),
        (
            "void at::native::vectorized_elementwise_kernel<4, neg_kernel_cuda::{lambda()#1}>",
            "elementwise/copy",
        ),
        ("void cudnn::ops::nchwToNhwcKernel<float, float>", "elementwise/copy"),
        ("triton_poi_fused_add_mul_3", "elementwise/copy"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, sum_functor>>", "reduce/norm"),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float>", "reduce/norm"),
        ("void split_embedding_codegen_forward_unweighted_kernel<float, long>", "embedding"),
        ("aten::mm", "gemm/conv"),
        ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*)", "elementwise/copy"),
        ("void cutlass::device_kernel<fbgemm_gpu::f8f8bf16_rowwise::GemmKernel>", "gemm/conv"),
        ("aten::add_.Tensor", "elementwise/copy"),
        ("fft_of_nobody_knows", "other"),
    ],
)
def test_categories(name, expected):
    assert category(name) == expected


def test_kernel_time_by_category(tmp_path):
    events = [
        *launched("sgemm", 0, 10, 20, corr=1),
        *launched("Memcpy HtoD (Pinned -> Device)", 3, 30, 4, corr=2, cat="gpu_memcpy"),
        *launched("Memset (Device)", 5, 34, 1, corr=3, cat="gpu_memset"),
        *launched("ncclDevKernel_AllReduce", 6, 35, 9, corr=4, stream=8),
    ]
    _, _, (found,) = insights(write(tmp_path / "t.json", events))
    expected = {"gemm/conv": 20e-6, "communication": 9e-6, "memcpy": 4e-6, "memset": 1e-6}
    assert found.kernel_time[0] == found.kernel_time[1] == pytest.approx(expected)


def test_resident_blocks_are_the_smallest_limit():
    # 128 threads with 122 registers: 4 warps of ceil(122 x 32 / 256) x 256 = 4096: 65536 / 16384 = 4 blocks.
    # 256 threads, 32 registers, 100,000 B of shared memory: 167936 / 101024 = 1.
    # 32 threads, 8 registers: 64 warps of threads, but 32 blocks at most.  A launch without a block: unknown.
    launches = np.array(
        [[9000, 128, 122, 12544, 25], [64, 256, 32, 100_000, 12], [64, 32, 8, 0, 50], [64, 0, 0, 0, 0]]
    ).T
    assert blocks_per_sm(launches, A100).tolist() == [4, 1, 32, 0]
    # Without the device: 25% of 64 warps are 16, in blocks of 4.
    assert blocks_per_sm(launches, {}).tolist() == [4, 1, 32, 0]


def test_sms_in_use(tmp_path):
    # 108 SMs, 16 blocks of 128 threads fit on one: a full wave is 1,728 blocks.  1,782 are a full wave and 54
    # more: (1 + 0.5) / 2.  The next kernel has 27 blocks: a quarter.
    def kernel_of(grid, ts, corr, **more):
        args = {"grid": [grid, 1, 1], "block": [128, 1, 1], "registers per thread": 16, "shared memory": 0}
        return launched("k", ts - 10, ts, 1000, corr=corr, **args, **more)

    events = [*kernel_of(1782, 1000, 1), *kernel_of(27, 2500, 2), *kernel_of(54, 2500, 3, stream=8)]
    path = write(tmp_path / "t.json", events, deviceProperties=[A100])
    replay, _, (found,) = insights(path)
    recorded = replay.job.ranks[0].recorded
    assert occupied_share(recorded, 108).tolist() == [0.75, 0.25, 0.5]
    # ms 0: 0.75.  ms 1: half idle, then both, 0.75: 0.375.  ms 2, half as long: 0.75.
    assert found.sms[0].series.tolist() == pytest.approx([0.75, 0.375, 0.75])
    assert found.sms[1].mean == pytest.approx((0.75 + 0.375 + 0.375) / 2.5)
    assert found.sms[1].peak == pytest.approx(0.75)
    _, _, (unknown,) = insights(write(tmp_path / "u.json", launched("k", 0, 8, 10, corr=1)))
    assert unknown.sms is None


def test_kernels_together_occupy_no_more_than_the_gpu():
    share = np.array([0.8, 0.8])
    start, end = np.array([0, 0]), np.array([PS_PER_MS, PS_PER_MS // 2])
    # 1 for the first half, then 0.8.
    assert utilisation(share, np.arange(2), start, end).mean == pytest.approx(0.9)


def test_the_critical_path_goes_through_host_and_streams(tmp_path):
    # a 10..30, b behind an event on another stream 33..50; the host waits for b, then launches c (70..75).
    events = [
        *launched("a", 2, 10, 20, corr=1),
        call("cudaEventRecord", 5, 1, corr=2),
        call("cudaStreamWaitEvent", 7, 1, corr=3),
        sync_record("Stream Wait Event", 3, stream=8, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2),
        *launched("b", 9, 33, 17, corr=4, stream=8),
        call("cudaStreamSynchronize", 12, 40, corr=5),
        sync_record("Stream Sync", 5, stream=8),
        *launched("c", 62, 70, 5, corr=6),
        *launched("not on the path", 11, 34, 2, corr=7, stream=9),
    ]
    _, _, (found,) = insights(write(tmp_path / "t.json", events))
    # Work 20 + 17 + 5; 3 between a and b; from the end of b to the start of c the host.
    assert found.path == pytest.approx({COMPUTE: 42e-6, GAP: 3e-6, HOST: 20e-6})
    assert found.host_bound_share == pytest.approx(20 / 65)


def test_what_explains_a_difference(tmp_path):
    events = [
        *launched("a", 2, 10, 20, corr=1),
        *launched("b", 4, 31, 9, corr=2),
        *launched("c", 60, 68, 2, corr=3),
    ]
    job = import_traces([write(tmp_path / "t.json", events)])
    job.graph.ops.recorded_ps[job.graph.ops.name.tolist().index("a")] += 50_000_000
    replay = play(job)
    steps = replay.steps()
    (found,) = step_insights(replay, steps)
    # a 10..80, b 81..90, c right after b: 92.  The recording ended at 70 and c had waited for its launch.
    assert steps[0].replayed.span - steps[0].recorded.span == pytest.approx(22e-6)
    shown = [(c.name, c.work_difference_ps / 1e6, c.wait_difference_ps / 1e6) for c in found.contributions]
    assert shown == [("a", 50.0, 0.0), ("c", 0.0, -28.0)]


def test_an_op_that_ends_the_recorded_step_only(tmp_path):
    events = [*launched("a", 0, 8, 20, corr=1), *launched("b", 2, 10, 30, corr=2, stream=8)]
    job = import_traces([write(tmp_path / "t.json", events)])
    job.graph.ops.recorded_ps[job.graph.ops.name.tolist().index("b")] = 1_000_000
    replay = play(job)
    (found,) = step_insights(replay, replay.steps())
    # The step ends with a, at 28; the recorded one went on to 40.
    assert [(c.name, c.difference_ps / 1e6) for c in found.contributions] == [(AFTER, -12.0)]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(1, 60), st.integers(5, 90)),
        min_size=1,
        max_size=25,
    )
)
def test_paths_and_contributions_add_up(tmp_path_factory, ops):
    free, called, events = {}, 0, []
    for corr, (stream, pause, length, latency) in enumerate(ops, 1):
        called += pause
        start = max(free.get(stream, 0), called + latency)
        free[stream] = start + length
        events += launched(f"k{corr % 3}", called, start, length, corr=corr, stream=7 + stream)
    path = write(tmp_path_factory.mktemp("t") / "t.json", events)
    _, steps, found = insights(path, gaps="typical")
    for row, insight in zip(steps, found, strict=True):
        assert sum(insight.path.values()) == pytest.approx(row.replayed.span, abs=1e-12)
        difference = sum(entry.difference_ps for entry in insight.contributions)
        assert difference == round((row.replayed.span - row.recorded.span) * 1e12)


def test_a_step_that_is_later_is_not_longer(tmp_path):
    path = write(tmp_path / "t.json", [step(1, 0, 50), *launched("a", 2, 10, 20, corr=1)])
    replay = play(import_traces([path]))
    same = replace(replay, start_ps=(replay.start_ps[0] + 5,), end_ps=(replay.end_ps[0] + 5,))
    (found,) = step_insights(same, same.steps())
    assert found.contributions == []  # later, not longer
