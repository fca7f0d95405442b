"""A language model under layouts of torch's own: ``any_layout.py NAME=VALUE ...``.

Degrees: replicate and shard (data parallel), cp, tp, pp, ep (within shard); data: fsdp2, ddp or fsdp1.
names=odd: axes are called so that nothing is said; chunks: of each stage (interleaved 1F1B); microbatches: of
the pipeline, else accumulated; log=1: the first rank reads its loss; clip=1; sizes as in :data:`DEFAULTS`.
"""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

DEFAULTS = {
    "replicate": 1, "shard": 1, "cp": 1, "tp": 1, "pp": 1, "ep": 1, "chunks": 1, "microbatches": 1,
    "layers": 2, "hidden": 32, "heads": 4, "vocab": 96, "seq": 32, "batch": 2, "log": 0, "clip": 0,
}  # fmt: skip
AXES = ("pp", "replicate", "shard", "cp", "tp")


class Attention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.size = hidden // heads
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for w in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """One expert a rank; every expert gets as many tokens."""

    def __init__(self, hidden, group):
        super().__init__()
        self.group = group
        self.expert = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x):
        rows = x.flatten(0, 1)
        there = all_to_all_single_autograd(rows, None, None, self.group)
        return all_to_all_single_autograd(self.expert(there), None, None, self.group).view_as(x)


class Block(nn.Module):
    def __init__(self, hidden, heads, experts):
        super().__init__()
        self.norm, self.norm_2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.up, self.down = nn.Linear(hidden, 3 * hidden), nn.Linear(3 * hidden, hidden)
        self.experts = Experts(hidden, experts) if experts is not None else None

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        y = self.norm_2(x)
        x = x + self.down(functional.silu(self.up(y)))
        return x if self.experts is None else x + self.experts(y)


class Part(nn.Module):
    """Layers, with the embedding before the first of the model and the head behind the last."""

    def __init__(self, options, index, parts, experts):
        super().__init__()
        hidden, vocab = options["hidden"], options["vocab"]
        first, last = (options["layers"] * at // parts for at in (index, index + 1))
        self.embedding = nn.Embedding(vocab, hidden) if index == 0 else None
        self.layers = nn.ModuleList(Block(hidden, options["heads"], experts) for _ in range(first, last))
        self.head = nn.Linear(hidden, vocab, bias=False) if index == parts - 1 else None

    def forward(self, x):
        x = x if self.embedding is None else self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(x)


class Mesh:
    """A mesh that is asked for its axes by :data:`AXES`, whatever they are called."""

    def __init__(self, sizes, names):
        self.mesh = init_device_mesh("cuda", sizes, mesh_dim_names=tuple(names))

    def __getitem__(self, axes):
        called = tuple(self.mesh.mesh_dim_names[AXES.index(axis)] for axis in axes.split())
        return self.mesh[called if len(called) > 1 else called[0]]


def loss_of(logits, target):
    return functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def parallel(part, mesh, options, how):
    """``part`` over all axes but the pipeline's."""
    if options["tp"] > 1:
        column, row = ColwiseParallel, RowwiseParallel
        plan = {"attention.q": column(), "attention.k": column(), "attention.v": column(), "up": column()}
        for layer in part.layers:
            parallelize_module(layer, mesh["tp"], {**plan, "attention.o": row(), "down": row()})
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(part, process_group=mesh["replicate"].get_group())
    if how == "fsdp1":
        return FullyShardedDataParallel(
            part, process_group=mesh["shard"].get_group(), use_orig_params=True,
            device_id=torch.cuda.current_device(),
        )  # fmt: skip
    over = mesh["replicate shard" if options["replicate"] > 1 else "shard"]
    if options["cp"] > 1:
        over = mesh["shard cp"]._flatten()
    apart = {p for name, p in part.named_parameters() if ".experts." in name} or None
    for layer in part.layers:
        fully_shard(layer, mesh=over, ignored_params=apart)
    return fully_shard(part, mesh=over, ignored_params=apart)


def main(options, how, names):
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    mesh = Mesh([options[axis] for axis in AXES], AXES if names == "usual" else "abcde")
    rank = dist.get_rank()
    experts = None
    if options["ep"] > 1:
        experts = dist.new_subgroups(options["ep"])[0]
    stages, chunks = options["pp"], options["chunks"]
    place = mesh["pp"].get_local_rank() if stages > 1 else 0
    mine = [chunk * stages + place for chunk in range(chunks)]
    torch.manual_seed(0)
    parts = [Part(options, index, stages * chunks, experts).to(device, torch.bfloat16) for index in mine]
    parts = [parallel(part, mesh, options, how) for part in parts]
    parameters = [p for part in parts for p in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, foreach=False)
    count = options["microbatches"]
    shape = (options["batch"] * (count if stages > 1 else 1), options["seq"])
    if options["cp"] > 1:
        set_rotate_method("alltoall")
    if stages > 1:
        made = [
            PipelineStage(part, index, stages * chunks, device, group=mesh["pp"].get_group())
            for part, index in zip(parts, mine, strict=True)
        ]
        schedule = (
            ScheduleInterleaved1F1B(made, count, loss_fn=loss_of) if chunks > 1
            else Schedule1F1B(made[0], count, loss_fn=loss_of)
        )  # fmt: skip
        first, last = 0 in mine, stages * chunks - 1 in mine
    for _ in range(3):
        for _ in range(1 if stages > 1 else count):
            tokens = torch.zeros(shape, dtype=torch.long, device=device)
            whole = partial(context_parallel, mesh["cp"], buffers=[tokens], buffer_seq_dims=[1])
            with whole() if options["cp"] > 1 else torch.enable_grad():
                if stages > 1:
                    schedule.step(*([tokens] if first else []), **({"target": tokens} if last else {}))
                else:
                    loss = loss_of(parts[0](tokens), tokens)
                    loss.backward()
                    if options["log"] and rank == 0:
                        print(loss.item())
        for part in parts:
            for name, one in part.named_parameters():
                if ".experts." in name and options["shard"] > options["ep"]:
                    dist.all_reduce(one.grad)
        if options["clip"]:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=False)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    given = dict(one.split("=") for one in sys.argv[1:])
    how, names = given.pop("data", "fsdp2"), given.pop("names", "usual")
    main({**DEFAULTS, **{name: int(value) for name, value in given.items()}}, how, names)
