"""How processes of a job, threads and steps begin: ``launches.py spawned | started | threaded | ...``."""

import os
import queue
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def spawned():
    """One process for each GPU, by spawn; the launcher said nothing."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        del os.environ[name]
    torch.multiprocessing.spawn(one_of_two, args=(2,), nprocs=2)


def started():
    """One process for each GPU, one after the other."""
    processes = [torch.multiprocessing.Process(target=one_of_two, args=(rank, 2)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def one_of_two(rank, ranks):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://localhost:29500", rank=rank, world_size=ranks)
    train(nn.parallel.DistributedDataParallel(nn.Linear(4, 4).to(rank)))


def prepared():
    """Rank 0 writes a file that the others read behind a barrier."""
    dist.init_process_group("nccl")
    gloo = dist.new_group(backend="gloo")
    where = Path(sys.argv[2], "width")
    if dist.get_rank() == 0:
        time.sleep(0.5)
        where.write_text("6", encoding="utf-8")
    dist.monitored_barrier(gloo, timedelta(seconds=60))
    width = int(where.read_text(encoding="utf-8"))
    train(nn.parallel.DistributedDataParallel(nn.Linear(4, width).cuda()))


def threaded():
    """Batches are pinned and copied by a thread."""
    batches = queue.Queue(2)

    def load():
        for _ in range(3):
            batches.put(torch.empty(2, 4, pin_memory=True).to("cuda", non_blocking=True))

    threading.Thread(target=load, daemon=True).start()
    model = nn.Linear(4, 6).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(batches.get()).sum().backward()
        optimizer.step()


def updated():
    """Parameters are updated by hand, three times; the second time behind an evaluation."""
    model = nn.Linear(4, 4).cuda()
    for step in range(3):
        if step == 2:
            with torch.no_grad():
                model.eval()(torch.zeros(2, 4, device="cuda"))
            model.train()
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        for one in model.parameters():
            one.data.sub_(one.grad, alpha=0.1)
            one.grad = None


def train(model):
    """Three steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    {one.__name__: one for one in (spawned, started, prepared, threaded, updated)}[sys.argv[1]]()
