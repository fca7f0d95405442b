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
        ("void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*)", "all_gather"),
        ("_multimem_all_gather_kernel", "all_gather"),
        ("void one_shot_all_reduce<8, true>(int, int, int)", "all_reduce"),
        ("void vllm::cross_device_all_gather<8>(vllm::RankData*)", "all_gather"),
        ("mnnvl_lamport_reduce_scatter<__nv_bfloat16, 8>(int)", "reduce_scatter"),
        ("void uccl::internode_ll::dispatch<true, 7168>(void*)", "all_to_all"),
        ("void a2a_kernels::a2a_combine_recv_kernel<8, 4>(unsigned long)", "all_to_all"),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>",
            "all_reduce",
        ),
        ("_ZN7deep_ep9internode8dispatchILb0ELi8EEEvPv", "all_to_all"),
        ("tensorrt_llm::kernels::mnnvl_throughput::moeA2ACombineKernel(float*)", "all_to_all"),
        ("void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(Args)", "all_to_all"),
        (
            "quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 8> >>",
            "all_reduce",
        ),
        ("_ZN5aiter33reduce_scatter_cross_device_storeIDF16bLi8EEEvPNS_8RankDataE", "reduce_scatter"),
        ("_ZN5aiter26cross_device_reduce_1stageIDF16bLi8EEEvPNS_8RankDataE", "all_reduce"),
        ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, 8>(Params)", "all_reduce"),
        ("void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8>(float*)", "all_reduce"),
        ("userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int)", "all_gather"),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<8>(int)", "reduce_scatter"),
        ("kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", "send_recv"),
        # Counting tokens per rank stays on the GPU; Inductor names a kernel after what stands before it.
        ("void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)", ""),
        ("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)", ""),
        ("void dpsk::grouped_gemm::cuda::utils::transpose<512, 128, 4, 4>(int)", ""),
        ("_ZN7deep_ep6layout19get_dispatch_layoutILi256EEEvPKl", ""),
        ("triton_poi_fused_add_all_reduce_4", ""),
        ("triton_red_fused_one_shot_all_reduce_4", ""),
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
