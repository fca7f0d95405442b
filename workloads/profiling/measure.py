"""Times of kernels on the GPU that torch sees: alone, beside a copy kernel, and of launches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from simcore.records import dataclass
from workloads.profiling.cases import KernelCase, num_elements
from workloads.profiling.copy_kernel import Launch

REPEATS = 15
BESIDE_REPEATS = 5
_COPY_FLOATS = 64 << 20  # 256 MiB each way: far more than any L2
_TARGET_S = 0.01  # of kernels per timed sample
_SETTLE_S = 5e-4  # from the launch of the copy to that of the kernels
_VOCABULARY = 50_000  # rows of a table that are looked up


def launches_per_sample(seconds: float) -> int:
    """Launches of a kernel of ``seconds`` that one timed sample holds: about 10 ms, between 3 and 100."""
    return max(3, min(100, int(_TARGET_S / max(seconds, 1e-5))))


def copy_duration_us(lasts_us: float) -> int:
    """How long the copy runs beside kernels that last ``lasts_us`` alone: longer than two slow replays."""
    return int(4 * lasts_us) + 3_000


def device_facts() -> dict[str, Any]:
    """What torch says of the first GPU and of itself."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "num_sms": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": int(getattr(properties, "L2_cache_size", 0)),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "driver": _driver(),
    }


def _driver() -> str:
    import subprocess

    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version,power.limit,clocks.max.sm", "--format=csv,noheader"],
            capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.splitlines()[0] if done.stdout else ""


def prepare(case: KernelCase) -> Callable[[], Any]:
    """The case as a call that launches its kernels on the current stream; inputs are random."""
    import torch

    dtype, aten = getattr(torch, case.dtype), torch.ops.aten

    def random(shape: Sequence[int]) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)

    ins = [random(shape) for shape in case.in_shapes]
    if case.op in ("mm", "bmm"):
        out = random(case.out_shapes[0])
        return lambda: getattr(torch, case.op)(*ins, out=out)
    if case.op == "scaled_mm":
        left, right, one = ins[0], ins[1].t().contiguous().t(), torch.ones((), device="cuda")
        return lambda: aten._scaled_mm(left, right, one, one, out_dtype=torch.bfloat16)
    if case.op == "grouped_mm":
        tokens, experts = case.in_shapes[0][0], case.in_shapes[1][0]
        ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * (tokens // experts)
        weight = ins[1].transpose(1, 2).contiguous().transpose(1, 2)
        return lambda: aten._grouped_mm(ins[0], weight, ends)
    if case.op_class == "attention_fwd":
        return lambda: aten._scaled_dot_product_flash_attention(*ins, 0.0, True)
    if case.op_class == "attention_bwd":
        out, logsumexp, begins, ends, *rest = aten._scaled_dot_product_flash_attention(*ins[1:], 0.0, True)
        kept = (out, logsumexp, begins, ends, *rest[:2], 0.0, True, *rest[2:4])
        return lambda: aten._scaled_dot_product_flash_attention_backward(*ins, *kept)
    if case.op_class == "conv":
        ins = [x.contiguous(memory_format=torch.channels_last) for x in ins]
        padding = [case.in_shapes[-1][2] // 2] * 2
        sizes = ([1, 1], padding, [1, 1], False, [0, 0], 1)
        if "backward" in case.op:
            return lambda: aten.convolution_backward(*ins, None, *sizes, [True, True, False])
        return lambda: aten.convolution(*ins, None, *sizes)
    if case.op == "layer_norm_backward":
        gradient, x, mean, rstd, weight = ins
        mean, rstd = mean.float(), rstd.float()
        width, wanted = [x.shape[-1]], [True, True, True]
        return lambda: aten.native_layer_norm_backward(gradient, x, width, mean, rstd, weight, weight, wanted)
    if case.op == "layer_norm":
        return lambda: torch.nn.functional.layer_norm(ins[0], ins[0].shape[-1:])
    if case.op == "rms_norm":
        return lambda: torch.nn.functional.rms_norm(ins[0], ins[0].shape[-1:], ins[1])
    if case.op in ("softmax", "log_softmax"):
        return lambda: getattr(torch, case.op)(ins[0], -1)
    if case.op == "log_softmax_backward":
        return lambda: aten._log_softmax_backward_data(*ins, -1, dtype)
    if case.op_class in ("embedding_fwd", "embedding_bwd"):
        table, index = ins[0], torch.randint(_VOCABULARY, case.in_shapes[1], device="cuda")
        if case.op == "embedding":
            return lambda: torch.nn.functional.embedding(index, table)
        return lambda: aten.embedding_dense_backward(table, index, case.out_shapes[0][0], -1, False)
    return _streaming(case, dtype)


def _streaming(case: KernelCase, dtype: Any) -> Callable[[], Any]:
    """A case that is told by the bytes that it moves."""
    import torch

    x, y = torch.ones(2, num_elements(case), device="cuda", dtype=dtype)
    if case.op == "add":
        out = torch.empty_like(x)
        return lambda: torch.add(x, y, out=out)
    if case.op == "copy":
        return lambda: y.copy_(x)
    if case.op == "sum":
        return lambda: torch.sum(x)
    if case.op == "fill":
        return lambda: x.fill_(1.0)
    assert case.op == "fused_adamw"
    means, step = (torch.zeros_like(x), torch.ones_like(x)), torch.ones((), device="cuda")
    rates: dict[str, Any] = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "eps": 1e-8}
    return lambda: torch._fused_adamw_(
        [x], [y], [means[0]], [means[1]], [], [step], **rates, amsgrad=False, maximize=False
    )


def _events() -> tuple[Any, Any]:
    import torch

    event: Callable[..., Any] = torch.cuda.Event  # torch types neither this nor streams
    return event(enable_timing=True), event(enable_timing=True)


def _stream() -> Any:
    import torch

    stream: Callable[..., Any] = torch.cuda.Stream
    return stream()


@dataclass(frozen=True)
class Captured:
    """``count`` launches of one kernel in a CUDA graph, so that launches do not hold them up."""

    graph: Any
    count: int

    def elapsed_us(self) -> float:
        """Time of one kernel in one replay, the gap to the next included, us."""
        first, last = _events()
        first.record()
        self.graph.replay()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e3 / self.count


def capture(run: Callable[[], Any]) -> Captured:
    """Warm up and capture about 10 ms of a kernel."""
    import torch

    side = _stream()
    torch.cuda.synchronize()  # inputs were made on another stream
    with torch.cuda.stream(side):  # capturing wants what ran before on another stream than the default
        for _ in range(3):
            run()
        side.synchronize()
        begin = time.perf_counter()
        run()
        side.synchronize()
    count = launches_per_sample(time.perf_counter() - begin)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            run()
    graph.replay()
    torch.cuda.synchronize()
    return Captured(graph, count)


def time_alone_us(captured: Captured) -> float:
    """Median time of one kernel with the GPU to itself, us."""
    return statistics.median(captured.elapsed_us() for _ in range(REPEATS))


class Overlap:
    """Runs kernels beside the copy kernel."""

    def __init__(self, launch: Launch) -> None:
        import torch

        self._launch = launch
        self._src = torch.ones(_COPY_FLOATS, device="cuda")
        self._dst = torch.empty_like(self._src)
        self._moved = torch.zeros(64, device="cuda", dtype=torch.int64)
        self._side = _stream()

    def time_us(self, captured: Captured, alone_us: float, blocks: int) -> tuple[float, float]:
        """(median time of one kernel beside ``blocks`` copying blocks, us; bytes/s that the copy read)."""
        import torch

        duration_us = copy_duration_us(captured.count * alone_us)
        samples, rates = [], []
        for _ in range(BESIDE_REPEATS):
            torch.cuda.synchronize()
            with torch.cuda.stream(self._side):
                self._launch(self._src, self._dst, self._moved, blocks, duration_us)
            time.sleep(_SETTLE_S)  # the copy holds its SMs before the kernels come
            samples.append(captured.elapsed_us())
            torch.cuda.synchronize()
            rates.append(float(self._moved[:blocks].sum()) / (duration_us * 1e-6))
        return statistics.median(samples), statistics.median(rates)


def launch_times() -> dict[str, float]:
    """Host time of a launch, idle-stream latency, spacing in a stream and in a graph (us), queue length."""
    import torch

    x = torch.zeros(1, device="cuda")
    tiny = prepare(KernelCase("fill", "fill", "float32", num_bytes=4))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(200):
        tiny()
    launch_us = (time.perf_counter() - begin) / 200 * 1e6
    torch.cuda.synchronize()
    round_trips = []
    for _ in range(50):
        begin = time.perf_counter()
        tiny()
        torch.cuda.synchronize()
        round_trips.append((time.perf_counter() - begin) * 1e6)
    sleep: Callable[[int], None] = torch.cuda._sleep
    sleep(1 << 22)  # kernels queue up behind it
    first, last = _events()
    first.record()
    for _ in range(200):
        tiny()
    last.record()
    last.synchronize()
    spacing_us = first.elapsed_time(last) * 1e3 / 200
    sleep(1 << 28)
    length = 0
    for _ in range(4000):
        begin = time.perf_counter()
        tiny()
        if time.perf_counter() - begin > 1e-3:  # the launch waited for room
            break
        length += 1
    torch.cuda.synchronize()
    del x
    return {
        "launch_us": launch_us,
        "round_trip_us": statistics.median(round_trips),
        "stream_spacing_us": spacing_us,
        "graph_spacing_us": time_alone_us(capture(tiny)),
        "queue_length": float(length),
    }
