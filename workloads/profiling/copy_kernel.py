"""A copy kernel that holds k thread blocks for a given time, as a communication kernel holds its channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Threads and registers as NCCL's kernels have them: few other blocks fit on the SM beside one of these.
THREADS = 640

#: Each block copies its own part of ``src`` to ``dst``, over and over, until ``duration_ns`` have passed,
#: and writes down how many bytes it read.
SOURCE = r"""
extern "C" __global__ void __launch_bounds__(640, 1)
hold_and_copy(const float* src, float* dst, long long* moved, int floats, int duration_us)
{
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    const float4* from = reinterpret_cast<const float4*>(src);
    float4* to = reinterpret_cast<float4*>(dst);
    const long long part = floats / 4 / gridDim.x, first = part * blockIdx.x;
    long long done = 0;
    do {
        for (long long i = threadIdx.x; i < 4 * blockDim.x; i += blockDim.x) {
            const long long at = first + (done / 16 + i) % part;
            to[at] = from[at];
        }
        done += 16LL * 4 * blockDim.x;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < 1000ULL * duration_us);
    if (threadIdx.x == 0) moved[blockIdx.x] = done;
}
"""

_WRAPPER = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
void launch(torch::Tensor src, torch::Tensor dst, torch::Tensor moved, int64_t blocks, int64_t duration_us) {
    hold_and_copy<<<blocks, 640, 0, c10::cuda::getCurrentCUDAStream()>>>(
        src.data_ptr<float>(), dst.data_ptr<float>(),
        reinterpret_cast<long long*>(moved.data_ptr<int64_t>()), int(src.numel()), int(duration_us));
}
"""

#: (source, destination, bytes by block, thread blocks, duration in us): launched on the current stream.
Launch = Callable[[Any, Any, Any, int, int], None]


def compile_copy_kernel(say: Callable[[str], None]) -> Launch | None:
    """The kernel, compiled with NVRTC or, where torch has no such call, with nvcc; None where neither works.

    ``say`` is told why.
    """
    import torch

    compiler = getattr(torch.cuda, "compile_kernel", None) or getattr(torch.cuda, "_compile_kernel", None)
    if compiler is not None:
        try:
            kernel = compiler(SOURCE, "hold_and_copy")
        except Exception as error:  # whatever the driver says, measuring goes on without overlaps
            say(f"NVRTC could not compile the copy kernel: {error}")
        else:

            def launch(src: Any, dst: Any, moved: Any, blocks: int, duration_us: int) -> None:
                arguments = [src, dst, moved, src.numel(), duration_us]  # torch passes ints as C's int
                stream = torch.cuda.current_stream()
                kernel(grid=(blocks, 1, 1), block=(THREADS, 1, 1), args=arguments, stream=stream)

            return launch
    try:
        from torch.utils.cpp_extension import load_inline

        declared = (
            "void launch(torch::Tensor src, torch::Tensor dst, torch::Tensor moved, int64_t blocks,"
            " int64_t duration_us);"
        )
        load: Callable[..., Any] = load_inline
        built = load(
            "stepsim_copy_kernel", cpp_sources=declared, cuda_sources=SOURCE + _WRAPPER, functions=["launch"]
        )
    except Exception as error:
        say(f"nvcc could not compile the copy kernel: {error}; overlaps are left out")
        return None
    found: Launch = built.launch
    return found
