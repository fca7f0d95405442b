"""DDP whose ranks read sequences of other lengths: drawn by a sampler, or made by hand."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Texts(Dataset):
    """Sequences as long as ``lengths`` says, one after the other."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.arange(self.lengths[index])


class Own(DistributedSampler):
    """Has made its list before anybody can ask for another's."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.chosen = list(super().__iter__())

    def __iter__(self):
        return iter(self.chosen)


def padded(samples):
    """As long as the longest."""
    return nn.utils.rnn.pad_sequence(samples, batch_first=True)


def batches(how, rank, world):
    """Three of two sequences for each rank; some in the middle of the world are longer."""
    if how == "hand":
        return [torch.zeros(2, 16, dtype=torch.int64) for _ in range(3)]
    lengths = [16] * (6 * world)
    for longer in {"equal": (), "pairs": (1, 2)}.get(how, (2, 5)):
        lengths[longer + 5 * world] = 32  # in the third batch
    kind = Own if how == "own" else DistributedSampler
    sampler = kind(Texts(lengths), num_replicas=world, rank=rank, shuffle=False)
    return DataLoader(sampler.dataset, batch_size=2, sampler=sampler, collate_fn=padded)


class Model(nn.Module):
    """A table, and attention over what it holds."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(32, 8)

    def forward(self, words):
        x = self.words(words)[:, None]
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


if __name__ == "__main__":
    dist.init_process_group("nccl")
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    rank, world, group = dist.get_rank(), dist.get_world_size(), None
    if sys.argv[1] == "pairs":  # neighbours read the same
        mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        rank, world, group = rank // 2, world // 2, mesh.get_group("dp")
    model = DistributedDataParallel(Model().cuda(), device_ids=[device], process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(sys.argv[1], rank, world):
        model(batch.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
