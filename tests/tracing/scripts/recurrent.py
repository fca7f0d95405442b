"""Recurrent layers: their shapes, forward and back, are those that the host's own kernels give."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import rnn


def shapes(layer, given, states, device):
    """Of results and gradients."""
    layer, given = layer.to(device), given.detach().to(device).requires_grad_()
    states = tuple(one.detach().to(device).requires_grad_() for one in states)
    hidden = states[0] if len(states) == 1 else states
    found, last = layer(given, hidden if states else None)
    kept = [last] if isinstance(last, torch.Tensor) else list(last)
    (found.sum() + sum(one.sum() for one in kept)).backward()
    tensors = [found, *kept, given.grad, *(one.grad for one in (*states, *layer.parameters()))]
    return [(tuple(one.shape), one.dtype) for one in tensors], found.stride()


def compared():
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for options in (
            {},
            {"num_layers": 2, "bidirectional": True, "dropout": 0.5},
            {"bias": False, "batch_first": True},
            {"proj_size": 3} if kind is nn.LSTM else {"nonlinearity": "relu"} if kind is nn.RNN else {},
        ):
            layers = 2 if "num_layers" in options else 1
            places = layers * (1 + options.get("bidirectional", False))
            given = torch.rand(5, 2, 4)
            batch = 5 if options.get("batch_first") else 2
            sizes = (options.get("proj_size", 6), 6)[: 2 if kind is nn.LSTM else 1]
            states = [torch.rand(places, batch, size) for size in sizes]
            real, traced = (shapes(kind(4, 6, **options), given, states, where) for where in ("cpu", "cuda"))
            assert real == traced, (kind, options, real, traced)
    packed = [rnn.pack_padded_sequence(torch.rand(3, 2, 4).to(to), [3, 1]) for to in ("cpu", "cuda")]
    both = nn.LSTM(4, 6, bidirectional=True)
    found = [both.to(one.data.device)(one)[0] for one in packed]
    assert found[0].data.shape == found[1].data.shape == (4, 12)


def main():
    dist.init_process_group("nccl")
    compared()
    model = nn.LSTM(32, 64, num_layers=2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(28, 16, 32, device="cuda"))[0].sum().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
