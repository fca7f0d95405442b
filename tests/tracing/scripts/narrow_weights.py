"""Weights of fewer than 16 bits: ``narrow_weights.py four_bits``."""

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


dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
globals()[sys.argv[1]]()
