"""What programs do on their way: ``habits.py moved | scaled | loaded | mesh | store | flags | ...``."""

import copy
import inspect
import os
import sys
from datetime import timedelta
from typing import get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, TensorDataset


def moved(model):
    """Parameters get to the device one by one."""
    for parameter in model.parameters():
        parameter.data = parameter.data.cuda()
        assert parameter.is_cuda and isinstance(parameter, nn.Parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        optimizer.step()


def emptied(_):
    """A model of no device gets memory of the GPU, then values; what hangs on a parameter stays."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    model[0].weight.mark = "kept"
    weight = model[0].weight
    model.to_empty(device="cuda")
    nn.init.normal_(model[0].weight)
    assert model[0].weight is weight and weight.is_cuda and weight.mark == "kept"
    assert isinstance(weight, nn.Parameter) and weight.requires_grad
    train(model)


def rebuilt(_):
    """A parameter is made of another's class and attributes; gradients lie in parts of one storage."""
    model = nn.Linear(4, 4, device="meta")
    for name, one in list(model.named_parameters()):
        setattr(model, name, type(one)(torch.zeros(one.shape).cuda(), **vars(one)))
    flat = torch.zeros(20, device="cuda")
    memory, low = flat.untyped_storage(), 0
    assert memory.device.type == "cuda"
    for one in model.parameters():
        part = memory[low : low + 4 * one.numel()]
        low += part.nbytes()
        one.grad = torch.empty([], device=memory.device).set_(source=part).view_as(one)
    assert model.bias.grad.storage_offset() == 16 and low == memory.nbytes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        optimizer.step()
        flat.zero_()


def scaled(model):
    """An optimizer that is not fused steps only where the host reads that nothing has overflowed."""
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.zeros(2, 4, device="cuda")).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def loaded(model):
    """All arguments of a loader by position, and a loader made by the signature, as frameworks do."""
    model.cuda()

    def collate(rows):
        return torch.stack([row[0] for row in rows]) + 0

    data = TensorDataset(torch.zeros(23, 4))
    loader = DataLoader(data, 3, False, None, None, 2, collate, True, True)
    assert loader.drop_last and len(loader) == 7 and loader.collate_fn is collate
    assert "batch_size" in inspect.signature(DataLoader.__init__).parameters
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        model(batch.cuda()).sum().backward()
        optimizer.step()


def mesh(model):
    """Nobody sets the rank's device before a mesh does."""
    assert torch.cuda.is_available() and not torch.cuda.is_initialized()
    dist.init_process_group()
    init_device_mesh("cuda", (dist.get_world_size(),))
    assert torch.cuda.current_device() == int(os.environ["LOCAL_RANK"]) == torch.zeros(1).cuda().get_device()
    assert torch.cuda.is_initialized()
    train(model.cuda())


def store(model):
    """Ranks tell each other by a store, and what they are asked for the backend."""
    dist.init_process_group("nccl")
    assert dist.get_backend() == "nccl" and dist.get_backend(dist.new_group(backend="gloo")) == "gloo"
    assert torch.cuda.nccl.version() >= (2, 10)
    held = dist.TCPStore("localhost", 29500, dist.get_world_size(), dist.get_rank() == 0)
    if dist.get_rank() == 0:
        held.set("width", "6")
    shared = dist.PrefixStore("of all", held)
    shared.set("own", b"2")
    assert shared.get("own") == b"2" and shared.add("number", 3) == 3
    width = int(held.get("width"))
    train(nn.Sequential(model, nn.Linear(4, width)).cuda())


def timeouts(model):
    """A group gets options of its backend, and another timeout; a device is named by its scope."""
    torch.cuda.set_device(torch.cuda.device(0))
    assert torch.cuda.current_device() == 0
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.cga_cluster_size = 4
    assert options.is_high_priority_stream and options.config.cga_cluster_size == 4
    dist.init_process_group("nccl", pg_options=options)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=5), dist.new_group(pg_options=options))
    train(model.cuda())


def compilers(model):
    """What torch's compiler does with Triton's classes where it finds Triton."""
    import triton
    from triton.compiler import CompiledKernel
    from triton.runtime.autotuner import OutOfResources

    class Config(triton.Config):
        """With more in it."""

    assert isinstance(Config({}, num_warps=4), triton.Config) and not isinstance(model, CompiledKernel)
    assert get_args(CompiledKernel | int) == (CompiledKernel, int)
    try:
        model.cuda()
    except OutOfResources:
        raise
    train(model)


def flags(model):
    """Rank 0 tells the others by a broadcast how wide the model is; nobody else knows."""
    dist.init_process_group("nccl")
    told = torch.tensor([6, 1] if dist.get_rank() == 0 else [0, 0], device="cuda")
    dist.broadcast(told, 0)
    width, deep = told.tolist()
    assert bool(deep)
    dist.all_reduce(torch.zeros(4, 4, device="cuda")[:, :2])  # which NCCL refuses
    train(nn.Sequential(model, nn.Linear(4, width)).cuda())


def extension(model):
    """A product that adds to what is there, by an extension of apex."""
    import fused_weight_gradient_mlp_cuda

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight.t()

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32(x, grad, weight.main_grad)
            return grad @ weight, None

    weight = nn.Parameter(torch.zeros(6, 4, device="cuda"))
    weight.main_grad = torch.zeros(6, 4, device="cuda")
    train(model.cuda(), lambda hidden: Linear.apply(hidden, weight))


def attention(model):
    """Flash attention of an extension, two heads of queries to one of keys, rotated and normed."""
    from flash_attn import flash_attn_func
    from flash_attn.layers.rotary import apply_rotary_emb
    from flash_attn.ops.triton.layer_norm import rms_norm_fn

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.Parameter(torch.ones(64))
            self.queries = nn.Parameter(torch.zeros(2, 8, 4, 64))

        def forward(self, x):
            queries = apply_rotary_emb(self.queries.bfloat16(), x[:8, :32], x[:8, :32])
            keys = rms_norm_fn(x, self.norm, None).view(2, 8, 2, 64).bfloat16()
            return flash_attn_func(queries, keys, keys, causal=True)

    model = Attention().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(32, 64, device="cuda")).sum().backward()
        optimizer.step()


def grouped(_):
    """Six tokens, four for the first expert and two for the second, by an extension's products."""
    from grouped_gemm import ops

    experts = nn.Parameter(torch.zeros(2, 8, 4, device="cuda"))
    optimizer = torch.optim.SGD([experts], lr=0.1)
    chosen = torch.tensor([[0], [1], [0], [0], [1], [0]], dtype=torch.int32, device="cuda")
    for _ in range(3):
        tokens = torch.zeros(6, 8, device="cuda", requires_grad=True)
        moved, places = ops.permute(tokens, chosen)
        sizes = torch.bincount(chosen.flatten(), minlength=2).cpu()
        assert sizes.tolist() == [4, 2]
        ops.unpermute(
            ops.gmm(moved, experts, sizes), places, torch.ones(6, 1, device="cuda")
        ).sum().backward()
        optimizer.step()


def blocks(_):
    """An optimizer that keeps its states in 8 bits."""
    import bitsandbytes

    model = nn.Linear(64, 64).cuda()
    optimizer = bitsandbytes.optim.PagedAdamW8bit(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(2, 64, device="cuda")).sum().backward()
        optimizer.step()


def replaced(_):
    """Constructors give tensors of the GPU in bfloat16 while the model is made."""
    kept = {name: getattr(torch, name) for name in ("empty", "zeros", "ones", "full")}

    def forced(make):
        return lambda *args, **kwargs: make(*args, **kwargs | {"device": "cuda", "dtype": torch.bfloat16})

    for name, make in kept.items():
        setattr(torch, name, forced(make))
    model = nn.Linear(4, 4)
    scale, places = torch.ones(4), torch.arange(4, device="cuda").cumsum(0).tolist()
    for name, make in kept.items():
        setattr(torch, name, make)
    assert places == [0, 1, 3, 6] and scale.is_cuda and scale.tolist() == [1] * 4
    assert model.weight.is_cuda and model.weight.dtype == torch.bfloat16
    train(model.float())


class Marked(nn.Parameter):
    """A program's own class of parameters."""

    def __new__(cls, tensor, requires_grad=True):
        made = nn.Parameter.__new__(cls, tensor.data.detach(), requires_grad)
        made.marks = []
        return made

    def mark(self, name):
        self.marks.append(name)


def marked(_):
    """Parameters of such a class move, are copied and get memory, and stay what they are."""
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    model.weight = weight = Marked(model.weight)
    weight.mark("sharded")
    model.to_empty(device="cuda")
    assert model.weight is weight and weight.is_cuda and weight.marks == ["sharded"]
    model.weight = Marked(nn.Linear(4, 4).weight)
    model.cuda()
    for parameter in (weight, model.weight, copy.deepcopy(model).weight):
        assert isinstance(parameter, Marked) and isinstance(parameter, nn.Parameter) and parameter.is_cuda
    assert type(weight).__name__ == "Marked" and weight in {weight}
    train(model)
    assert not isinstance(model.weight.grad, Marked) and not isinstance(model.weight + 1, nn.Parameter)


def packed(_):
    """Sequences without padding, one behind the other; a window; the kernels of a ring."""
    from flash_attn import bert_padding, flash_attn_func
    from flash_attn.flash_attn_interface import (
        _flash_attn_varlen_backward,
        _flash_attn_varlen_forward,
        flash_attn_varlen_func,
    )

    kept = torch.tensor([[1] * 4 + [0] * 4, [1] * 8], device="cuda")
    states = nn.Parameter(torch.zeros(2, 8, 4, 64, device="cuda", dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([states], lr=0.1)
    for _ in range(3):
        q, places, ends, longest, _ = bert_padding.unpad_input(states, kept)
        assert q.shape == (12, 4, 64) and ends.tolist() == [0, 4, 12] and longest == 8
        found = flash_attn_varlen_func(q, q, q, ends, ends, longest, longest, causal=True)
        whole = bert_padding.pad_input(found, places, 2, 8)
        flash_attn_func(whole, whole, whole, causal=True, window_size=(3, 0)).sum().backward()
        ends = (ends, ends, longest, longest)
        found, sums, _, _ = _flash_attn_varlen_forward(q, q, q, *ends, 0.0, 0.125, True)
        made = [torch.empty_like(q) for _ in range(3)]
        _flash_attn_varlen_backward(found, q, q, q, found, sums, *made, *ends, 0.0, 0.125, True)
        optimizer.step()


def routed(model):
    """A map of which token goes to which expert begins as zeros like the scores, which nobody knows."""
    model.cuda()
    scores = model(torch.zeros(8192, 4, device="cuda"))
    _, chosen = torch.topk(scores, k=2, dim=1)
    routes = torch.zeros_like(scores).int().scatter(1, chosen, 1).bool()
    assert routes.sum(dim=0).tolist() == [8192 * 2 // 4] * 4  # every expert as many as another
    train(model)


def engine(model):
    """A framework asks autograd's engine for the backward pass."""
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.zeros(2, 4, device="cuda")).sum()
        torch.autograd.Variable._execution_engine.run_backward(
            (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
        )
        optimizer.step()


def synchronised(_model):
    """Batch norm over all ranks: each gathers everybody's mean, deviation and count."""
    dist.init_process_group("nccl")
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(2, 3, 4, 4, device="cuda")).sum().backward()
        optimizer.step()


def compressed(model):
    """Gradients travel in bfloat16."""
    dist.init_process_group("nccl")
    model = nn.parallel.DistributedDataParallel(model.cuda())
    model.register_comm_hook(None, bf16_compress_hook)
    train(model)


def graphed(model):
    """A module's forward and backward passes are captured, each as a graph."""
    model.cuda()
    sample = torch.zeros(2, 4, device="cuda", requires_grad=True)
    train(torch.cuda.make_graphed_callables(model, (sample,)))


def captured(model):
    """A whole step is one graph, with a branch on another stream."""
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch, graph, side = torch.zeros(2, 4, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()

    def step():
        optimizer.zero_grad(set_to_none=True)
        side.wait_stream(torch.cuda.current_stream(device=batch.device))
        with torch.cuda.stream(side):
            extra = batch.exp()
        loss = model(batch).sum()
        torch.cuda.current_stream().wait_stream(side)
        (loss + extra.sum()).backward()
        optimizer.step()

    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        step()
    torch.cuda.current_stream().wait_stream(warm)
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        step()
    for _ in range(3):
        batch.copy_(torch.ones(2, 4))
        graph.replay()


def train(model, loss=lambda result: result):
    """Three steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss(model(torch.zeros(2, 4, device="cuda"))).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    vars()[sys.argv[1]](nn.Linear(4, 4))
