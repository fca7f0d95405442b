"""One section after the other on several streams: ``streams.py``.

In section n, op "a" is a product of 4096 + 8 * 8n rows, "b" of 8 more, and so on; collectives and copies have
as many elements of 4 bytes more than 1 << 24.
"""

import datetime
import os
import threading

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("nccl")
torch.cuda.set_device(rank)
own = dist.new_group([0, 1])
at_once = dist.new_group([0, 1], device_id=torch.device("cuda", rank))
size, section = 4096, 0
weight = torch.empty(size, size, device="cuda")
side, far = torch.cuda.Stream(), torch.cuda.Stream()
on, main = torch.cuda.stream, torch.cuda.current_stream()
many = [torch.cuda.Stream(priority=-1) for _ in range(33)]


def number(op: str) -> int:
    return 8 * section + "abcdefgh".index(op)


def rows(op: str) -> torch.Tensor:
    return torch.empty(size + 8 * number(op), size, device="cuda")


def flat(op: str, **where: object) -> torch.Tensor:
    return torch.empty((1 << 24) + number(op), **(where or {"device": "cuda"}))


def work(op: str) -> torch.Tensor:
    return rows(op) @ weight


class Product(torch.autograd.Function):
    @staticmethod
    def forward(_, given: torch.Tensor) -> torch.Tensor:
        return given @ weight

    @staticmethod
    def backward(_, gradient: torch.Tensor) -> torch.Tensor:
        return gradient @ weight


def product(op: str) -> torch.Tensor:
    return Product.apply(rows(op).requires_grad_())


def beside(op: str = "c") -> None:
    with on(far):
        work(op)


def a_hook_leaves_the_stream() -> None:
    result = product("a")
    result.register_hook(lambda _: (far.wait_stream(main), beside())[1])
    result.sum().backward()
    work("b")


def custom_functions_on_two_streams() -> None:
    with on(side):
        first = product("a").sum()
    second = product("b").sum()
    main.wait_stream(side)
    (first + second).backward()
    work("c")


def a_backward_pass_is_called_elsewhere() -> None:
    result = product("a").sum()
    side.wait_stream(main)
    with on(side):
        result.backward()
        work("c")
    work("b")


def the_host_waits_for_an_event() -> None:
    work("a")
    event = main.record_event()
    work("b")
    event.synchronize()
    beside()


def the_host_waits_for_a_barrier() -> None:
    work("a")
    dist.barrier()
    beside()


def the_host_waits_as_long_as_it_says() -> None:
    dist.all_reduce(flat("a"), async_op=True).wait(datetime.timedelta(seconds=9))
    beside()


def copies_to_the_device() -> None:
    work("a")
    flat("b").copy_(flat("b", pin_memory=True), non_blocking=True)
    beside()
    main.wait_stream(far)
    flat("d").copy_(flat("d", pin_memory=True))
    beside("e")


def copies_to_the_host() -> None:
    work("a")
    flat("b").to("cpu", non_blocking=True)
    beside()
    main.wait_stream(far)
    flat("d").cpu()
    beside("e")


def threads_have_streams_of_their_own() -> None:
    def run() -> None:
        work("b")
        torch.cuda.set_stream(far)
        work("c")

    with on(side):
        work("a")
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        work("d")


def streams_come_from_a_pool() -> None:
    with on(many[0]):
        work("a")
    with on(many[32]):
        work("b")
    with on(torch.cuda.ExternalStream(many[0].cuda_stream)):
        work("c")


def a_captured_branch_waits_for_the_replay(graphs: list[torch.cuda.CUDAGraph] = []) -> None:  # noqa: B006
    if not graphs:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[0]):
            with on(side):
                work("b")
            work("c")
            torch.cuda.current_stream().wait_stream(side)
    work("a")
    graphs[0].replay()
    work("d")


def messages_beside_collectives() -> None:
    move = (dist.isend, dist.irecv)[rank]
    for group, message, reduced in ((own, "a", "b"), (at_once, "c", "d")):
        move(flat(message), 1 - rank, group)
        dist.all_reduce(flat(reduced), group=group, async_op=True)
        torch.cuda.synchronize()


SECTIONS = (
    a_hook_leaves_the_stream,
    custom_functions_on_two_streams,
    a_backward_pass_is_called_elsewhere,
    the_host_waits_for_an_event,
    the_host_waits_for_a_barrier,
    the_host_waits_as_long_as_it_says,
    copies_to_the_device,
    copies_to_the_host,
    threads_have_streams_of_their_own,
    streams_come_from_a_pool,
    a_captured_branch_waits_for_the_replay,
    messages_beside_collectives,
)
parameter = torch.nn.Parameter(torch.empty(64, device="cuda"))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for _ in range(3):
    parameter.sum().backward()
    for section, one in enumerate(SECTIONS):  # noqa: B007
        one()
        torch.cuda.synchronize()
    optimizer.step()
