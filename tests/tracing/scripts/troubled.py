"""Scripts that cannot be traced, one by one: ``troubled.py HOW``."""

import contextlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

torch.library.define("simcore_tests::opaque", "(Tensor x) -> Tensor")  # its code is compiled


class Opaque(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.weight + torch.ops.simcore_tests.opaque(x)


def main(how):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) + (8 if how == "devices" else 0))
    model = (Opaque() if how == "opaque" else nn.Linear(4, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    opaque = Opaque().cuda()
    for step in range(3):
        loss = model(torch.randn(2, 4, device="cuda")).sum()
        if how == "types":
            model(torch.zeros(2, 4, device="cuda", dtype=torch.bfloat16))
        if how == "exit" and step == 1:
            sys.exit("enough")
        if how == "shapes":
            model.load_state_dict({"weight": torch.zeros(4, 5), "bias": torch.zeros(4)})
        if how == "hang" and step == 1:
            time.sleep(600)
        if how == "computing" and step == 1:
            end = time.process_time() + 1
            while time.process_time() < end:
                pass
        while how == "endless" and step == 1:
            pass
        if how == "divided":
            model.weight.view(4 // torch.randint(1, 4, (1,), device="cuda").item(), -1)
        if how == "network":
            import socket

            socket.create_connection(("192.0.2.1", 80))
        if how == "lookup":
            import urllib.request

            urllib.request.urlopen("http://models.example.org/weights")
        if how == "objects" and rank == 0:
            dist.recv_object_list([None], src=1)
        if how == "circle":
            dist.recv_object_list([None], src=1 - rank)
        if how == "unsendable" and rank == 0:
            dist.send_object_list([lambda: None], dst=1)
        assert how != "assertion" or step == 0
        if (how == "diverges" and rank == 1) or (how == "third" and rank == 2):
            dist.all_reduce(loss.detach())
        if how == "caught":
            with contextlib.suppress(Exception):
                opaque(loss)
            with contextlib.suppress(Exception):
                torch.autograd.grad(loss, opaque.weight)
        if how == "swallowed":
            with contextlib.suppress(Exception):
                opaque(loss)
                optimizer.step()
            continue
        chosen = loss.new_empty(10) > 0
        if how == "values" and float(loss) > 0.5:  # the default answer is 1.0
            loss = loss + torch.nonzero(chosen).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1])
