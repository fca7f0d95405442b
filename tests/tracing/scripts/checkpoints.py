"""Checkpoints: ``checkpoints.py resumed | awaited | older | safe FOLDER``."""

import importlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


class Training:
    """What is saved and loaded as a whole."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state):
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.step = state["step"]


def resumed(folder):
    """The optimizer makes its states by a step of its own before anything is computed."""
    training = made(DistributedDataParallel(nn.Linear(4, 4).cuda()))
    training.step = 3
    checkpoints.save({"training": training, "seed": 7}, checkpoint_id=folder)
    training.step, state = 0, {"training": training, "seed": 0}
    checkpoints.load(state, checkpoint_id=folder)
    assert training.step == 3 and state["seed"] == 7
    train(training)


def awaited(folder):
    """Saved beside the steps; shards of weights and a count on the host."""
    model = nn.Linear(4, 4).cuda()
    fully_shard(model)
    training, count, pending = made(model), torch.tensor(0), None
    for _ in range(3):
        train(training, 1)
        if pending is not None:
            pending.result()
        count += 1
        state = {"model": model.state_dict(), "count": count}
        pending = checkpoints.async_save(state, checkpoint_id=folder)
    pending.result()


def older(folder):
    """By its older names, which write and read files."""
    training, count = made(nn.Linear(4, 4).cuda()), torch.tensor(5)
    for _ in range(3):
        train(training, 1)
        state = {"model": training.model.state_dict(), "count": count.clone(), "at": [1, "epoch"]}
        checkpoints.save_state_dict(state, checkpoints.FileSystemWriter(folder))
        state["count"].zero_()
        state["at"] = [0, ""]
        checkpoints.load_state_dict(state, checkpoints.FileSystemReader(folder))
        assert state["count"].item() == 5 and state["at"] == [1, "epoch"]


def safe(folder):
    """By the library of that name; no value of such a weight is kept."""
    library = importlib.import_module("safetensors.torch")
    tied = nn.ModuleDict({"in": nn.Embedding(900, 90), "out": nn.Linear(90, 900)}).cuda()
    tied["out"].weight = tied["in"].weight
    file = Path(folder) / "model.safetensors"
    library.save_model(tied, file, {"step": "3"})
    assert library.load_model(tied, str(file)) == (set(), [])
    with library.safe_open(file, "pt", device="cuda") as held:
        assert held.metadata()["step"] == "3" and {"in.weight", "out.bias"} < {*held.keys()}
        assert held.get_slice("in.weight").get_shape() == [900, 90] and held.get_tensor("out.bias").is_cuda
        assert held.get_slice("in.weight").get_dtype() == "F32"
    model = nn.Linear(4, 4).cuda()
    library.save_file(model.state_dict(), file)
    loaded = library.load(library.save(library.load_file(file)))
    assert {name: one.shape for name, one in loaded.items()} == {"weight": (4, 4), "bias": (4,)}
    file.unlink()  # of what is held
    train(made(model))


def made(model):
    return Training(model, torch.optim.AdamW(model.parameters()))


def train(training, steps=3):
    for _ in range(steps):
        training.model(torch.zeros(2, 4, device="cuda")).sum().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("nccl")
    vars()[sys.argv[1]](sys.argv[2])
