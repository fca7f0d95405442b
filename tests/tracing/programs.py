"""Little programs that run inside a tracing worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workloads.tracing.record.recording import Recording


def record(program: Callable[[], None], rank: int = 1, world_size: int = 4) -> Recording:
    """Run ``program`` as one rank and return what was recorded."""
    import torch.distributed as dist

    from workloads.tracing.fake import host_values, process_groups
    from workloads.tracing.record.recorder import Recorder

    process_groups.enter_world(rank, world_size, gpus_per_node=8)
    dist.init_process_group("nccl")
    recorder = Recorder()
    with host_values.make_fake_mode(), recorder:
        recorder.recording = True
        recorder.begin_segment("step", phase="fwd")
        program()
        recorder.recording = False
    return recorder.result


def two_streams() -> Recording:
    """A side stream that waits for, and is waited for by, the default stream."""
    import torch

    def program() -> None:
        first = torch.ones(8, device="cuda")  # op 0
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            aside = first * 2  # op 1, waits for op 0
        done = side.record_event()
        here = first + 1  # op 2, waits for nothing
        torch.cuda.current_stream().wait_event(done)
        both = here + aside  # op 3, waits for op 1
        torch.cuda.synchronize()  # op 4
        with torch.cuda.stream(side):
            both.mul_(3)  # op 5: no wait, the host has seen op 3 end
        both.sum().item()  # ops 6 and 7

    return record(program)


def collectives() -> Recording:
    """Synchronous, asynchronous and coalesced collectives, point-to-point calls, a group of one."""
    import torch
    import torch.distributed as dist

    def program() -> None:
        data = torch.ones(4, device="cuda")  # op 0: 16 bytes
        dist.all_reduce(data, op=dist.ReduceOp.MAX)  # op 1, on the issuing stream
        work = dist.all_reduce(data, async_op=True)  # op 2, on the communicator's stream
        more = torch.ones(16, device="cuda")  # op 3
        work.wait()
        data.add_(1)  # op 4, waits for op 2
        dist.all_gather_into_tensor(more, data)  # op 5
        dist.reduce_scatter_tensor(data, more)  # op 6
        pair = dist.new_group([1, 3], group_desc="PAIR_GROUP")
        dist.broadcast(data, 1, group=pair)  # op 7
        alone = [dist.new_group([rank], group_desc="ALONE_GROUP") for rank in range(4)][1]
        dist.all_reduce(data, group=alone)  # nothing
        dist.isend(data, 2).wait()  # op 8
        calls = [dist.P2POp(dist.isend, data, 2), dist.P2POp(dist.irecv, more, 0)]
        for request in dist.batch_isend_irecv(calls):  # ops 9 and 10
            request.wait()
        with dist.distributed_c10d._coalescing_manager(async_ops=True) as coalesced:
            dist.all_reduce(data)  # op 11
            dist.all_reduce(more)  # op 12
        coalesced.wait()
        torch.add(data, 1)  # op 13

    return record(program)


def buckets() -> Recording:
    """Two halves of one buffer: reducing the first must not seem to wait for writing the second."""
    import torch
    import torch.distributed as dist

    def program() -> None:
        buffer = torch.zeros(8, device="cuda")  # op 0
        low, high = buffer[:4], buffer[4:]
        low.add_(1)  # op 1
        high.add_(1)  # op 2
        work = dist.all_reduce(low, async_op=True)  # op 3: its data come from op 1
        high.add_(1)  # op 4: after op 2, not after op 3
        work.wait()
        buffer.mul_(2)  # op 5: after ops 3 and 4

    return record(program)


def lifetimes() -> Recording:
    """Storages that die, are shared by a view, or outlive the step."""
    import torch

    kept = []

    def program() -> None:
        first = torch.ones(256, device="cuda")  # op 0: 1024 bytes
        second = first * 2  # op 1: 1024 bytes
        view = second[:16]
        del first  # after op 1
        del second  # the view keeps the storage
        third = view + 1  # op 2: 64 bytes
        del view  # after op 2: 1024 bytes
        kept.append(third)

    return record(program)


def grouped_products() -> Recording:
    """Products of four groups of rows, of columns, and of what is summed over."""
    import torch

    def program() -> None:
        def half(*shape: int) -> torch.Tensor:
            return torch.empty(*shape, device="cuda", dtype=torch.bfloat16)

        ends = torch.empty(4, device="cuda", dtype=torch.int32)
        torch._grouped_mm(half(64, 32), half(4, 32, 16), offs=ends)
        torch._grouped_mm(half(4, 16, 32), half(32, 64), offs=ends)
        torch._grouped_mm(half(16, 64), half(64, 32), offs=ends)

    return record(program)


def below_autograd() -> Recording:
    """Composite operators where autograd does not take them apart."""
    import torch

    def program() -> None:
        with torch.inference_mode():
            wide = torch.ones(8, 8, device="cuda")
            wide.to(torch.bfloat16)
            wide.t().contiguous()
            torch.nn.functional.linear(wide, wide)

    return record(program)


def one_place_has_all() -> Recording:
    """Rank 1 of four gathers, as a tensor and as an object; rank 0 scatters."""
    import torch
    import torch.distributed as dist

    def program() -> None:
        data = torch.ones(4, device="cuda")  # op 0: 16 bytes
        dist.gather(data, [torch.empty_like(data) for _ in range(4)], dst=1)  # the allocations are no ops
        dist.scatter(data, src=0)

    return record(program)


def another_dimension() -> Recording:
    """A DTensor of 8 x 12 floats in four ranks' columns goes to their rows."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard

    def program() -> None:
        mesh = dist.device_mesh.init_device_mesh("cuda", (4,))
        columns = DTensor.from_local(torch.ones(8, 3, device="cuda"), mesh, [Shard(1)])
        rows = columns.redistribute(mesh, [Shard(0)]).to_local()
        assert rows.shape == (2, 12)

    return record(program)


def in_a_way_of_its_own() -> str:
    """What is said of an operator that communicates and that nobody has described."""
    import torch
    import torch.distributed as dist

    library = torch.library.Library("of_my_own", "FRAGMENT")
    library.define("sum_of_all(Tensor x, str group_name) -> Tensor")
    torch.library.register_fake("of_my_own::sum_of_all", lambda x, _: torch.empty_like(x), lib=library)

    def program() -> None:
        data = torch.ones(4, device="cuda")
        torch.ops.of_my_own.sum_of_all(data, dist.group.WORLD.group_name)

    try:
        record(program)
    except RuntimeError as error:
        return str(error)
    return ""


def unfit(what: str) -> str:
    """What is said of a call that a group of four, by NCCL, refuses."""
    import torch
    import torch.distributed as dist

    def program() -> None:
        data, more = torch.ones(8, 2, device="cuda"), torch.ones(8, 2, device="cuda")
        if what == "splits":
            dist.all_to_all_single(more, data, [4, 4], [4, 4])
        elif what == "gathered":
            dist.all_gather_into_tensor(more, data)
        elif what == "reduced":
            dist.reduce_scatter_tensor(more, data)
        elif what == "dealt":
            dist.scatter(more, [data] * 3 if dist.get_rank() == 1 else None, src=1)
        elif what == "typed":
            dist.all_gather_into_tensor(data.bfloat16(), data[:2])
        elif what == "on the host":
            dist.all_reduce(torch.ones(4))
        elif what == "from nobody":
            dist.broadcast(data, src=5)
        elif what == "to nobody":
            dist.reduce(data, dst=5)
        elif what == "sent to nobody":
            dist.send(data, 5)
        else:
            dist.all_gather([more, more], data)

    try:
        record(program)
    except RuntimeError as error:
        return str(error)
    return ""


def asks_nvml(folder: str) -> tuple[object, ...]:
    """What ``pynvml`` says of a GPU, where it is installed and no driver is."""
    import importlib
    import sys
    from pathlib import Path

    (Path(folder) / "pynvml.py").write_text("def nvmlInit():\n    raise OSError\n", encoding="utf-8")
    sys.path.insert(0, folder)
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    one = nvml.nvmlDeviceGetHandleByIndex(1)
    return nvml.nvmlDeviceGetName(one), nvml.nvmlDeviceGetMemoryInfo(one).total >> 30
