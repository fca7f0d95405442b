"""What programs do beside training: ``around.py downloaded | evaluated``."""

import copy
import os
import sys

import torch
import torch.distributed as dist
from torch import nn


def downloaded(model):
    """Trained weights would come from the network; what a library can use it asks before."""
    state = torch.hub.load_state_dict_from_url("https://example.org/no-such-weights.pth")
    assert not model.load_state_dict(state).missing_keys
    library = "import importlib.util as u; found = [u.find_spec(n) for n in ('transformer_engine', 'mpi4py')]"
    exec(compile(library, "/opt/site-packages/library.py", "exec"), names := {})
    assert names["found"] == [None, None]
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    assert (world.rank, world.Get_size()) == (int(os.environ["RANK"]), 2)
    assert dist.is_torchelastic_launched()
    dist.init_process_group("nccl")
    assert world.bcast(world.rank) == 0 and world.allgather(world.rank) == [0, 1] and world.allreduce(2) == 4
    optimizer = torch.optim.SGD(model.cuda().parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        optimizer.step()


def evaluated(model):
    """A frozen copy that is asked in each step is part of it; so is an evaluation, which is said."""
    model.cuda()
    fixed = copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        batch = torch.zeros(2, 4, device="cuda")
        with torch.no_grad():
            wanted = fixed(batch)
        (model(batch) - wanted).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    vars()[sys.argv[1]](nn.Linear(4, 4))
