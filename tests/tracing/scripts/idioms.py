"""What programs do with values on their way, one line each: ``idioms.py FOLDER`` writes what this rank gets.

``idioms.py FOLDER PORT`` really runs two ranks on CPUs, with gloo.
"""

import copy
import io
import json
import os
import pickle
import random
import shutil
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from masks import blocks, mask_for_every_query
from torch import nn
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

FOLDER = Path(sys.argv[1])


def gathered(one, device):
    """One tensor of every rank, as a list."""
    parts = [torch.empty_like(one.to(device)) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, one.to(device))
    return torch.stack(parts).tolist()


def reduced(one, op=dist.ReduceOp.SUM):
    dist.all_reduce(one, op=op)
    return one.tolist()


def broadcast(one, source=0):
    dist.broadcast(one, source)
    return one.tolist()


def objects_of_all(one):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, one)
    return found


def broadcast_objects(*objects):
    found = list(objects)
    dist.broadcast_object_list(found, 0)
    return found


def dealt(one):
    """Each row to the rank of its number."""
    rows = [torch.empty_like(row) for row in one]
    dist.all_to_all(rows, list(one))
    return torch.stack(rows).tolist()


def summed_of_own_row(one):
    found = torch.empty_like(one[0])
    dist.reduce_scatter(found, list(one))
    return found.tolist()


def put_in_place(one):
    """Saved beside, moved, with its folder, too, copied, looked at, opened, removed."""
    begun, done = (Path(tempfile.mkdtemp(dir=FOLDER)) for _ in range(2))
    torch.save(one, begun / "beside.pt")
    begun.replace(done)
    beside, last, best = (done / f"{name}.pt" for name in ("beside", "last", "best"))
    beside.replace(last)
    shutil.copy(last, best)
    found = [last.exists(), beside.exists(), best.stat().st_size > 100]
    with best.open("rb") as file:
        found += torch.load(file)["ids"].tolist()
    best.unlink()
    return [*found, best.exists()]


def saved(one):
    path = FOLDER / f"saved.{dist.get_rank()}.pt"
    torch.save(one, path)
    return torch.load(path)


def in_memory(one):
    file = io.BytesIO()
    torch.save(one, file)
    file.seek(0)
    return torch.load(file)


def after(function, one):
    function(one)
    return one


def seeded(function, seed=7):
    torch.manual_seed(seed)
    return function()


def of_rank_0(generator, device):
    """As frameworks make all ranks shuffle alike."""
    state = generator.get_state().to(device)
    dist.broadcast(state, 0)
    generator.set_state(state.cpu())
    return torch.randint(0, 99, (3,), generator=generator).tolist()


def passed_on(one, rank, group=None):
    """From rank 0 to rank 1, others aside."""
    if rank == 0:
        dist.send(one, 1, group=group)
    elif rank == 1:
        dist.recv(one, 0, group=group)
    return one.tolist()


def swapped(one, rank):
    if rank > 1:
        return None
    found = torch.empty_like(one)
    calls = [dist.P2POp(dist.irecv, found, 1 - rank), dist.P2POp(dist.isend, one, 1 - rank)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return torch.zeros(found).shape


def handed_on(store, rank):
    if rank == 0:
        store.set("flag", "on")
    return store.get("flag").decode(), store.add(f"own {rank}", 2)


def policy(device):
    """Actions by probabilities that nobody knows; the distribution checks them."""
    return torch.distributions.Categorical(logits=torch.randn(4, 2, device=device))


def same_everywhere(one):
    """Whether this rank has what rank 0 has."""
    other = one.clone()
    dist.broadcast(other, 0)
    return bool((one == other).all())


def header(shape):
    """Sizes at the begin of a buffer of which the rest is never written."""
    buffer = torch.empty(16, dtype=torch.int32, device=shape.device)
    buffer[:2].copy_(shape)
    return torch.zeros(buffer[:2].tolist()).shape


class Picture(torch.Tensor):
    """A program's own class."""


def encoded(device):
    """Evaluation with padding, for which torch has kernels of nested tensors."""
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).to(device).eval()
    with torch.no_grad():
        padding = torch.zeros(2, 3, dtype=torch.bool, device=device)
        return encoder(torch.rand(2, 3, 8, device=device), src_key_padding_mask=padding).shape


def profiled(device):
    with torch.profiler.profile(with_stack=True) as found:
        torch.ones(2, device=device).add(1)
    return "aten" in found.key_averages().table(sort_by="cuda_time_total")


def sounded_again(one):
    window = torch.hann_window(8, device=one.device)
    return torch.istft(torch.stft(one, 8, return_complex=True, window=window), 8, window=window).shape


def idioms(rank, ranks, device, gloo, store):
    """Name -> what it gives, as plain Python."""
    t, dev = torch.tensor, (lambda *data, **options: torch.tensor(*data, device=device, **options))
    layer = seeded(lambda: nn.Linear(3, 2))
    batch = {"ids": torch.arange(6).view(2, 3), "mask": torch.ones(2, 3, dtype=torch.bool)}
    return {
        "a mask for every query": lambda: [mask_for_every_query(device, text) for text in (0, 1)],
        # formatting
        "format": lambda: f"{t(2.5):.4f} {t(3)} {dev(0.125):.2e}",
        "percent": lambda: "%d of %.1f" % (t(7), dev(2.0)),  # noqa: UP031
        "text of a tensor": lambda: str(t([1, 2])),
        "round": lambda: round(t(2.567).item(), 2),
        # reading
        "item": lambda: t([3, 9, 2]).max().item(),
        "item of the device": lambda: dev([3, 9, 2]).argmax().item(),
        "tolist": lambda: torch.arange(4).view(2, 2).tolist(),
        "tolist of the device": lambda: torch.arange(4, device=device).view(2, 2).t().tolist(),
        "int and float": lambda: (int(dev(4)), float(dev(0.5)), bool(dev([0, 1]).any())),
        "index": lambda: ["a", "b", "c"][dev(1)],
        "range": lambda: list(range(dev(3))),
        "iteration": lambda: [int(one) for one in dev([4, 5])],
        "unpacking": lambda: (lambda low, high: [low.item(), high.item()])(*dev([1, 2])),
        "truth": lambda: "yes" if dev([1.0]).sum() > 0 else "no",
        "drawn actions": lambda: tuple(policy(device).log_prob(policy(device).sample()).shape),
        "written in part": lambda: header(dev([2, 3])),
        "equal on all ranks": lambda: same_everywhere(torch.full((9,), 2.5, device=device).sqrt()),
        "all finite": lambda: bool(torch.isfinite(torch.rand(300, 300, device=device)).all()),
        "any nan": lambda: torch.isnan(torch.rand(300, 300, device=device)).any().item(),
        "equal": lambda: (torch.equal(t([1, 2]), t([1, 3])), torch.equal(dev([1]), dev([1]))),
        "allclose": lambda: torch.allclose(t([1.0]), t([1.0 + 1e-9])),
        "contains": lambda: 3 in dev([1, 3]),
        "max of a list": lambda: max(t([3, 9]), t([4, 1]), key=lambda one: one.sum().item()).tolist(),
        # arithmetic and indexing
        "grid": lambda: torch.arange(8).reshape(2, 2, 2).permute(2, 0, 1).reshape(-1, 2).tolist(),
        "nonzero": lambda: t([0, 1, 1]).nonzero(as_tuple=True)[0].tolist(),
        "nonzero of the device": lambda: (dev([0, 2, 0, 3]) > 0).nonzero().flatten().tolist(),
        "mask": lambda: dev([1, 2, 3])[dev([True, False, True])].tolist(),
        "cumsum": lambda: torch.cumsum(dev([0, 3, 1, 2]), 0).tolist(),
        "linspace": lambda: torch.linspace(0, 1, 5).tolist(),
        "sort": lambda: [one.tolist() for one in dev([3, 1, 2]).sort(descending=True)],
        "unique": lambda: [one.tolist() for one in torch.unique(t([3, 1, 3]), return_counts=True)],
        "bincount": lambda: torch.bincount(dev([0, 2, 2]), minlength=4).tolist(),
        "searchsorted": lambda: torch.searchsorted(t([1, 3, 5]), t([3, 4])).tolist(),
        "one hot": lambda: nn.functional.one_hot(dev([0, 2]), 3).tolist(),
        "where": lambda: torch.where(dev([1, 5]) > 2, dev([9, 9]), dev([0, 0])).tolist(),
        "scatter": lambda: torch.zeros(4, dtype=torch.long).scatter_(0, t([1, 3]), t([5, 6])).tolist(),
        "in place through a view": lambda: after(
            lambda one: one[1:].add_(5), torch.zeros(3, device=device)
        ).tolist(),
        "assignment": lambda: after(lambda one: one.__setitem__(0, dev(7)), torch.zeros(2)).tolist(),
        "repeat_interleave": lambda: dev([4, 5]).repeat_interleave(dev([2, 1])).tolist(),
        "cat and split": lambda: [one.tolist() for one in torch.cat([dev([1, 2]), dev([3])]).split([1, 2])],
        "tensor of tensors": lambda: torch.tensor([dev(1), dev(2)]).tolist(),
        "triangle": lambda: torch.tril(torch.ones(3, 3, dtype=torch.bool)).sum().item(),
        "pad": lambda: nn.utils.rnn.pad_sequence([t([1, 2]), t([3])], batch_first=True).tolist(),
        "parts": lambda: [one.tolist() for one in dev([1.0, 2.0, 3.0]).unsafe_chunk(2)],
        "conjugate": lambda: torch.view_as_real(dev([1 + 2j]).conj() * 2).tolist(),
        "spectrum": lambda: torch.fft.ifft(dev([1.0, 2.0])).real.tolist(),
        "mask of rows": lambda: (
            torch.rand(3, 4, device=device).masked_select(dev([[True], [False], [True]])).shape
        ),
        "least squares": lambda: (
            lambda a: [tuple(one.shape) for one in torch.linalg.lstsq(a, a[..., :2], driver="gels")]
        )(torch.rand(2, 5, 3, device=device)),
        "attention without heads": lambda: (
            nn.functional.scaled_dot_product_attention(*[torch.rand(2, 5, 6, device=device)] * 3).shape
        ),
        "sound": lambda: sounded_again(torch.rand(2, 64, device=device)),
        "derivative": lambda: torch.func.jvp(torch.sin, (dev([0.0]),), (dev([2.0]),))[1].tolist(),
        "class of tensors": lambda: [
            (type(one).__name__, isinstance(one, Picture), one.sum().item())
            for one in (dev([1.0]).as_subclass(Picture) * 2, t([1.0]).as_subclass(Picture).to(device) + 1)
        ],
        "padded evaluation": lambda: encoded(device),
        "profiler": lambda: profiled(device),
        "to no device": lambda: str(nn.Linear(2, 2).to(device).to("meta").weight.device),
        "lengths": lambda: batch["mask"].to(device).sum(-1).max().item(),
        "labels": lambda: (batch["ids"].to(device) != 0).sum().item(),
        "to the device and back": lambda: batch["ids"].to(device).cpu().numpy().sum().item(),
        "pinned": lambda: (
            t([2, 1], pin_memory=device == "cuda").to(device, non_blocking=True),
            dev([4]).new_tensor([3]),
        )[0].tolist(),
        "bits": lambda: dev([1.0]).view(torch.int32).item(),
        "blocks of a mask": lambda: blocks(lambda _b, _h, q, k: (q >= k) & (q - k < 90), device),
        "blocks of documents": lambda: (
            lambda number: blocks(lambda b, _h, q, k: number[b, q] == number[b, k], device)
        )((torch.arange(300, device=device) // 70).expand(2, 300)),
        # random numbers by seed
        "randperm": lambda: seeded(lambda: torch.randperm(6)).tolist(),
        "generator": lambda: torch.randint(0, 99, (3,), generator=torch.Generator().manual_seed(2)).tolist(),
        "state": lambda: seeded(lambda: after(torch.set_rng_state, torch.get_rng_state()) is not None),
        "state by the device": lambda: seeded(
            lambda: (torch.set_rng_state(torch.get_rng_state().to(device).cpu()), torch.rand(2).tolist())[1]
        ),
        "fork": lambda: seeded(lambda: (lambda _: torch.rand(1).item())(torch.random.fork_rng(devices=[]))),
        "initial values": lambda: layer.weight.detach().tolist(),
        "initial seed": lambda: seeded(torch.initial_seed),
        "split at random": lambda: seeded(
            lambda: [list(one.indices) for one in torch.utils.data.random_split(range(5), [3, 2])]
        ),
        "sampler": lambda: list(
            torch.utils.data.DistributedSampler(range(7), num_replicas=ranks, rank=rank, seed=3)
        ),
        "loader": lambda: seeded(
            lambda: [one.tolist() for one in torch.utils.data.DataLoader(torch.arange(5), 2, shuffle=True)]
        ),
        "Python's and numpy's": lambda: (
            random.Random(1).random(),
            np.random.default_rng(1).integers(0, 9, 3).tolist(),
        ),
        # numpy, copies, files
        "numpy": lambda: torch.from_numpy(np.arange(3) * 2).add(1).tolist(),
        "numpy of a tensor": lambda: np.asarray(torch.arange(3)).max().item(),
        "numpy shares": lambda: (lambda a: (torch.from_numpy(a).add_(1), a.tolist())[1])(np.zeros(2)),
        "numpy of a weight": lambda: layer.bias.detach().numpy().tolist(),
        "deepcopy": lambda: copy.deepcopy({"a": t([1, 2]), "b": dev([3])})["b"].tolist(),
        "deepcopy of a module": lambda: copy.deepcopy(layer).weight.tolist() == layer.weight.tolist(),
        "pickle": lambda: pickle.loads(pickle.dumps(torch.arange(3))).tolist(),
        "save and load": lambda: saved({"step": 4, "ids": t([1, 2]), "own": dev([5])})["ids"].tolist(),
        "save, move and copy": lambda: put_in_place({"ids": t([1, 2])}),
        "save and load in memory": lambda: in_memory(layer.state_dict())["bias"].tolist(),
        "load_state_dict": lambda: str(nn.Linear(3, 2).load_state_dict(layer.state_dict())),
        "share_memory": lambda: torch.arange(3).share_memory_().tolist(),
        # modules and gradients of the host
        "gradient": lambda: (lambda x: ((x * x).sum().backward(), x.grad.tolist())[1])(
            t([1.0, 2.0], requires_grad=True)
        ),
        "norm of a weight": lambda: round(layer.weight.norm().item(), 5),
        "fill": lambda: after(lambda one: one.data.fill_(2), nn.Parameter(torch.zeros(2))).tolist(),
        "number of parameters": lambda: sum(one.numel() for one in layer.parameters()),
        # other ranks
        "count": lambda: reduced(dev(5)),
        "count of ranks": lambda: reduced(dev([rank, 1])),
        "maximum": lambda: reduced(dev([float(rank)]), dist.ReduceOp.MAX),
        "sum of () and (1,)": lambda: np.ravel(reduced(dev(2.0) if rank % 2 else dev([1.0]))).tolist(),
        "by gloo": lambda: after(lambda one: dist.all_reduce(one, group=gloo), t([rank + 1])).tolist(),
        "flags": lambda: broadcast(dev([1, 0, 1]) if rank == 0 else dev([0, 0, 0])),
        "flags of the last": lambda: (
            functional.broadcast(dev([rank, 1]), ranks - 1, dist.group.WORLD) + 0
        ).tolist(),
        "counts for each": lambda: dealt(dev([[10 * rank + to] for to in range(ranks)])),
        "counts for each, functional": lambda: functional.all_to_all_single(
            dev([10 * rank + to for to in range(ranks)]), None, None, dist.group.WORLD
        ).tolist(),
        "sums for each": lambda: summed_of_own_row(dev([[rank + to, 1] for to in range(ranks)])),
        "seed of the last": lambda: broadcast(t([100 + rank]).to(device), ranks - 1),
        "generator of rank 0": lambda: of_rank_0(torch.Generator().manual_seed(3 + rank), device),
        "shapes of all": lambda: gathered(t([rank, 3]), device),
        "all_gather_object": lambda: objects_of_all({"rank": rank, "name": "node"}),
        "distribute_tensor": lambda: (
            distribute_tensor(
                torch.arange(2.0 * ranks + 1), DeviceMesh(device, list(range(ranks))), [Shard(0)]
            )
            .to_local()
            .tolist()
        ),
        "broadcast_object_list": lambda: broadcast_objects(rank, f"of {rank}"),
        "size sent": lambda: passed_on(dev([rank + 3, 5]), rank),
        "sizes sent both ways": lambda: swapped(dev([rank + 3]), rank),
        "by gloo from hand to hand": lambda: passed_on(t([rank + 3]), rank, gloo),
        "store": lambda: handed_on(store, rank),
        "store of the world": lambda: handed_on(dist.distributed_c10d._get_default_store(), rank),
        "barrier": lambda: dist.barrier() is None,
        "monitored_barrier": lambda: dist.monitored_barrier(gloo, timedelta(seconds=60)) is None,
        "ranks of a group": lambda: dist.get_process_group_ranks(gloo),
    }


def plain(value):
    """As JSON gives it back."""
    return json.loads(json.dumps(value))


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    store = dist.TCPStore("127.0.0.1", int(sys.argv[2]), ranks, rank == 0)
    found = {}
    for name, idiom in idioms(rank, ranks, device, dist.new_group(backend="gloo"), store).items():
        try:
            found[name] = plain(idiom())
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    (FOLDER / f"{device}.{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    model = nn.Linear(4, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(2, 4, device=device)).sum().backward()
        optimizer.step()
    dist.barrier()


def launch(port):
    """Two ranks, forks of this process."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2")
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            main()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    launch(sys.argv[3]) if len(sys.argv) > 3 else main()
