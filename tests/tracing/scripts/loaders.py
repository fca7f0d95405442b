"""Loaders with worker processes: streams that workers share out, and what they draw."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Stream(IterableDataset):
    """Numbers, which workers share out: by who they are, or as ``worker_init_fn`` tells their copies."""

    first, last = 0, 12

    def __iter__(self):
        worker = get_worker_info()
        step = 1 if worker is None or self.last - self.first < 12 else worker.num_workers
        yield from range(self.first + (0 if step == 1 else worker.id), self.last, step)


def halved(number):
    """The first or the second half."""
    worker = get_worker_info()
    assert (worker.id, worker.num_workers) == (number, 2)
    worker.dataset.first, worker.dataset.last = 6 * number, 6 * number + 6


class Drawn(Dataset):
    """A number that a worker draws."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return random.random(), torch.rand(()).item()


def batches_of_workers():
    """As worker processes would give them, in their order."""
    stream = Stream()
    batches = [one.tolist() for one in DataLoader(stream, batch_size=2, num_workers=2)]
    assert batches == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11]]
    loader = DataLoader(stream, batch_size=4, num_workers=2, worker_init_fn=halved)
    assert [one.tolist() for one in loader] == [[0, 1, 2, 3], [6, 7, 8, 9], [4, 5], [10, 11]]
    assert (stream.first, stream.last, get_worker_info()) == (0, 12, None)
    torch.manual_seed(7)
    loader = DataLoader(Drawn(), num_workers=2)
    drawn = [tuple(one.item() for one in pair) for pair in loader]
    after = torch.rand(()).item()
    torch.manual_seed(7)
    seed = torch.empty((), dtype=torch.int64).random_().item()  # the loader takes one number for itself
    assert after == torch.rand(()).item()
    for number in range(2):
        random.seed(seed + number)
        torch.manual_seed(seed + number)
        assert drawn[number::2] == [(random.random(), torch.rand(()).item()) for _ in range(4)]


if __name__ == "__main__":
    batches_of_workers()
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.zeros(2, 4, device="cuda")).sum().backward()
        optimizer.step()
