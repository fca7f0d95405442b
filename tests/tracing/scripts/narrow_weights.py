"""Weights of fewer than 16 bits: ``narrow_weights.py four_bits | wrapped``."""

import copy
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Adapted(nn.Module):
    """A frozen product of 4 bits and a trained one of rank 8 beside it, as QLoRA has them."""

    def __init__(self, compress_statistics: bool) -> None:
        import bitsandbytes as bnb

        super().__init__()
        options = {"compute_dtype": torch.bfloat16, "compress_statistics": compress_statistics}
        self.frozen = bnb.nn.LinearNF4(256, 1024, bias=False, **options)
        self.down, self.up = nn.Linear(256, 8, bias=False), nn.Linear(8, 1024, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.frozen(x) + self.up(self.down(x))
        return y


def four_bits() -> None:
    """Two of them, of which the first's input needs no gradient."""
    layers = nn.Sequential(Adapted(True), nn.Linear(1024, 256, bias=False), Adapted(False))
    model = layers.to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("down" in name or "up" in name)
    state = copy.deepcopy(model[0].frozen.weight)
    assert type(state).__name__ == "Params4bit" and not state.bnb_quantized
    model.cuda()
    weight = model[0].frozen.weight
    assert weight.dtype == torch.uint8 and weight.shape == (256 * 1024 // 2, 1)
    again = type(weight)(weight.data, **vars(weight))
    assert again.quant_state is weight.quant_state and isinstance(again, nn.Parameter)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
    model = DistributedDataParallel(model)
    for _ in range(3):
        model(torch.randn(512, 256, device="cuda", dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


class Eighth(torch.Tensor):
    """Shows numbers of 32 bits, holds 8 and a scale for all, as torchao's weights do."""

    @staticmethod
    def __new__(cls, held, scale):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=torch.float32, device=held.device)

    def __init__(self, held, scale):
        self.held, self.scale = held, scale

    def __tensor_flatten__(self):
        return ["held", "scale"], None

    @staticmethod
    def __tensor_unflatten__(parts, _, size, stride):
        return Eighth(**parts)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].held, args[0].scale)
        return func(
            *[one.held * one.scale if isinstance(one, cls) else one for one in args], **(kwargs or {})
        )


def wrapped() -> None:
    """A frozen one of them, and a trained product behind it."""
    held = torch.zeros(32, 16, dtype=torch.int8, device="cuda")
    model = nn.Linear(32, 4, bias=False, device="cuda")
    model.frozen = nn.Parameter(Eighth(held, torch.ones((), device="cuda")), requires_grad=False)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    for _ in range(3):
        model(nn.functional.linear(torch.zeros(8, 16, device="cuda"), model.frozen)).sum().backward()
        optimizer.step()


dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
globals()[sys.argv[1]]()
