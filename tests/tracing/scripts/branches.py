"""A shared layer, two behind it on two streams:

``branches.py layers | function | view | ddp | thread | again | late | fsdp1 | next``.
"""

import sys
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Halved(torch.autograd.Function):
    """Computes on a stream of its own, whatever is current, and back on the one that is."""

    @staticmethod
    def forward(ctx, x):
        with torch.cuda.stream(inner):
            return x / 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.main, self.side = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        hidden = self.trunk(x)
        stream.wait_stream(torch.cuda.current_stream())
        both = checkpoint(self.behind, hidden, use_reentrant=True) if what == "again" else self.behind(hidden)
        return both.sum()

    def behind(self, hidden):
        if what in ("late", "fsdp1"):
            return self.main(hidden) + self.side(hidden)
        with torch.cuda.stream(stream):
            beside = behind(hidden) if behind else self.side(hidden)
        result = self.main(hidden)
        torch.cuda.current_stream().wait_stream(stream)
        return result + beside


what = sys.argv[1]
#: In place of the second layer: a custom function; a view whose gradient is a kernel.
behind = {"function": Halved.apply, "view": lambda x: x[:1]}.get(what)
dist.init_process_group("nccl")
stream, inner = torch.cuda.Stream(), torch.cuda.Stream()
model = Model().cuda()
if what == "fsdp1":
    model = FullyShardedDataParallel(model)
if what == "ddp":
    model = DistributedDataParallel(model, bucket_cap_mb=1e-5)
if what == "thread":
    inside = threading.Event()

    def prefetch():
        with torch.cuda.stream(inner):
            inside.set()
            threading.Event().wait()

    threading.Thread(target=prefetch, daemon=True).start()
    inside.wait()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pending = []
for _ in range(3):
    loss = model(torch.zeros(2, 4, device="cuda"))
    if what == "late":  # asked for on another stream than that of the forward pass
        with torch.cuda.stream(inner):
            loss.backward()
    else:
        loss.backward()
    if what == "next":  # averages of a step are waited for in the next
        for one in pending:
            one.wait()
        pending = [dist.all_reduce(one.grad.clone(), async_op=True) for one in model.parameters()]
    optimizer.step()
    optimizer.zero_grad()
