"""What communicates in a recording is told by names; times in us."""

import pytest

from simcore.apps.replay.play import play
from tests.imports.traces import launched, write
from workloads.imports import import_traces


@pytest.mark.parametrize(
    "name, kind",
    [
        (
            "void dpsk::ep::internode::dispatch<false, 8>(int4*, dpsk::ep::internode::SourceMeta*)",
            "all_to_all",
        ),
        ("void deep_ep::internode_ll::combine<true, 7168>(void*)", "all_to_all"),
        ("void hybrid_ep::dispatch_kernel<8>(int)", "all_to_all"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        (
            "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16>(float**)",
            "all_reduce",
        ),
        ("multimem_one_shot_all_reduce_kernel<float, 16>", "all_reduce"),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>",
            "all_reduce",
        ),
        # Counting tokens per rank stays on the GPU; Inductor names a kernel after what stands before it.
        ("void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)", ""),
        ("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)", ""),
        ("void dpsk::grouped_gemm::cuda::utils::transpose<512, 128, 4, 4>(int)", ""),
        ("triton_poi_fused_add_all_reduce_4", ""),
    ],
)
def test_kernels_that_communicate_without_nccl_are_told_by_name(name, kind, tmp_path):
    # A product runs from 10 to 30; the other kernel beside it from 20 to 45.
    events = [*launched("gemm", 2, 10, 20, corr=1), *launched(name, 4, 20, 25, corr=2, stream=8)]
    job = import_traces([write(tmp_path / "t.json", events, distributedInfo={"rank": 0, "world_size": 64})])
    (row,) = play(job).steps()
    parts = (10e-6, 10e-6, 15e-6, 0) if kind else (35e-6, 0, 0, 0)
    assert tuple(row.recorded.parts().values()) == pytest.approx(parts, abs=1e-12)
    assert row.replayed == row.recorded
    told = job.ranks[0].recorded.collectives
    assert told.collective.tolist() == ["", kind]
    # 64 ranks that exchange nothing are a doubt.
    assert any("a world of 64 ranks" in doubt for doubt in job.report.doubts()) == (not kind)
