"""Worker processes of a data loader, one after the other in the process itself.

Note [Workers in turn]
    A worker process would know nothing of the fake device.  What a program can tell is kept: each worker has
    its own shallow copy of the dataset, seeds and random numbers, is asked who it is by ``get_worker_info``
    (which is how streams of samples are shared out), runs ``worker_init_fn`` on its copy, and batches come
    from the workers in turn until one after the other has no more.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
import torch.utils.data as data
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import dataloader
from torch.utils.data._utils import worker as torch_worker

Fetch = Callable[[], Any]


class LoaderWorkers(int):
    """What a loader is told: no processes, but ``count`` workers.  Frameworks that make a loader like another
    hand it on.
    """

    count: int
    prepare: Callable[[int], None] | None
    datasets: dict[int, Any] | None

    @classmethod
    def of(cls, count: int, prepare: Callable[[int], None] | None, *, persistent: bool) -> LoaderWorkers:
        """``prepare`` is the program's ``worker_init_fn``; ``persistent`` workers keep their datasets."""
        made = cls(0)
        made.count, made.prepare = count, prepare
        made.datasets = {} if persistent else None
        return made


def install() -> None:
    """Patch torch's iterator over batches, once per process."""
    iterator: Any = dataloader._SingleProcessDataLoaderIter
    original = iterator.__init__

    def init(self: Any, loader: Any) -> None:
        workers = loader.num_workers
        piped = isinstance(loader.dataset, data.IterDataPipe | data.MapDataPipe)
        if not isinstance(workers, LoaderWorkers) or not workers.count or piped:
            original(self, loader)
            return
        kinds: Any = dataloader._DatasetKind
        make = kinds.create_fetcher
        kinds.create_fetcher = staticmethod(lambda *given: _InTurn(workers, self._base_seed, make, *given))
        try:
            original(self, loader)
        finally:
            kinds.create_fetcher = staticmethod(make)

    iterator.__init__ = init


class _InTurn:
    """Fetches batches as torch's own fetchers do; ``collate_fn`` may be exchanged between two of them."""

    def __init__(
        self,
        workers: LoaderWorkers,
        seed: int,
        make: Callable[..., Any],
        kind: int,
        dataset: Any,
        *given: Any,
    ) -> None:
        auto_collation, self.collate_fn, drop_last = given
        self._streams = kind == dataloader._DatasetKind.Iterable

        def fetcher(own: Any) -> Any:
            return make(kind, own, auto_collation, self.collate_fn, drop_last)

        ranks = range(workers.count)
        self._left = deque(_Worker(workers, number, seed, dataset, fetcher) for number in ranks)

    def fetch(self, index: Any) -> Any:
        """The next worker's batch."""
        while self._left:
            try:
                batch = self._left[0].fetch(index, self.collate_fn)
            except StopIteration:
                if not self._streams:
                    raise
                self._left.popleft()
                continue
            self._left.rotate(-1)
            return batch
        raise StopIteration


class _Worker:
    def __init__(
        self, workers: LoaderWorkers, number: int, seed: int, dataset: Any, fetcher: Callable[[Any], Any]
    ) -> None:
        kept = workers.datasets
        own = _copied(dataset) if kept is None else kept.setdefault(number, _copied(dataset))
        self._prepare, self._make, self._fetcher = workers.prepare, fetcher, None
        self._info = torch_worker.WorkerInfo(
            id=number, num_workers=workers.count, seed=seed + number, dataset=own
        )
        self._numbers: Any = None
        self._base_seed = seed

    def fetch(self, index: Any, collate: Any) -> Any:
        """A batch, by this worker's random numbers."""
        with self._being_asked():
            if self._fetcher is None:
                if self._prepare is not None:
                    self._prepare(self._info.id)
                self._fetcher = self._make(self._info.dataset)
            fetcher: Any = self._fetcher
            fetcher.collate_fn = collate
            return fetcher.fetch(index)

    @contextmanager
    def _being_asked(self) -> Iterator[None]:
        outer = random_states(), torch_worker._worker_info
        if self._numbers is None:
            self._seed()
        else:
            set_random_states(self._numbers)
        torch_worker._worker_info = self._info
        try:
            yield
        finally:
            self._numbers = random_states()
            set_random_states(outer[0])
            torch_worker._worker_info = outer[1]

    def _seed(self) -> None:
        numpy_seed: Any = torch_worker._generate_state
        random.seed(self._info.seed)
        np.random.seed(numpy_seed(self._base_seed, self._info.id))  # noqa: NPY002
        with _disable_current_modes():
            torch.default_generator.manual_seed(self._info.seed)


def _copied(dataset: Any) -> Any:
    with suppress(Exception):  # a program's own class may not be made to be copied
        return copy.copy(dataset)
    return dataset


def random_states() -> tuple[Any, Any, torch.Tensor]:
    """Where the random numbers of Python, NumPy and torch are."""
    with _disable_current_modes():
        return random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002


def set_random_states(states: tuple[Any, Any, torch.Tensor]) -> None:
    """Go on from there."""
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    with _disable_current_modes():
        torch.default_generator.set_state(states[2])
