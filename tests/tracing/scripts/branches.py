"""A shared layer, and two behind it on two streams: ``branches.py``."""

import torch
from torch import nn

trunk, main, side = (nn.Linear(4, 4).cuda() for _ in range(3))
optimizer = torch.optim.SGD([*trunk.parameters(), *main.parameters(), *side.parameters()], lr=0.1)
stream = torch.cuda.Stream()
for _ in range(3):
    hidden = trunk(torch.zeros(2, 4, device="cuda"))
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        beside = side(hidden)
    result = main(hidden)
    torch.cuda.current_stream().wait_stream(stream)
    (result + beside).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
