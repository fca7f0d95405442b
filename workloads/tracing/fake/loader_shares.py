"""What the samplers of a program's loaders give other ranks, drawn on this one.

Note [Batches of other ranks]
    Most ranks are not run, and that one does what another does holds only where their batches have the same
    shapes, which are the data's own.  A sampler that shares samples out knows among how many, and which
    share is this rank's.  A copy of it that is told another share names the samples of that rank, and the
    loader's own dataset and ``collate_fn`` make its batches of them, once the step has been recorded.  Each
    rank that is run tells which samples it really got: those that were drawn for it must be the same.
"""

from __future__ import annotations

import copy
import hashlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from itertools import count, islice
from typing import Any

import numpy as np
import torch
import torch.utils.data as data
from torch.utils.data import dataloader
from torch.utils.data._utils.collate import default_collate

from simcore.records import dataclass
from workloads.tracing.fake import loader_workers
from workloads.tracing.fake.given_batches import Batches, LoaderShare

#: Seconds of a processor that are spent on drawing for others.
MOST_S = 5.0

#: Words in the names of what samplers know: among how many they share samples out, and whose share is theirs.
_AMONG = ("replicas", "processes", "world_size", "parallel_size", "num_shards")
_WHOSE = ("rank", "process_index", "shard_id")


class _UnknownError(Exception):
    """What the program will make of a batch does not show in it."""


@dataclass
class _Drawing:
    """A pass over a loader: the sampler as it was before (None: there is none), and the batches that were
    given in this step and the one before (number, samples, shapes), as some loaders are one ahead.
    """

    sampler: Any
    numbers: Any
    make: Callable[[], Any]
    by_sample: bool
    given: int = 0
    before: int = 0
    recent: list[tuple[int, Any, str]] = field(default_factory=list)


_passes: list[_Drawing] = []
_PASS = "_simcore_pass"


def begin(iterator: Any) -> None:
    """``iterator`` is about to ask its sampler for the first time."""
    kinds: Any = dataloader._DatasetKind
    sampler = _twin(iterator._index_sampler) if iterator._dataset_kind == kinds.Map else None

    def make() -> Any:
        given = (iterator._dataset, iterator._auto_collation, iterator._collate_fn, iterator._drop_last)
        return kinds.create_fetcher(kinds.Map, *given)

    by_sample = iterator._auto_collation and iterator._collate_fn is default_collate
    drawing = _Drawing(sampler, loader_workers.random_states(), make, by_sample)
    _passes.append(drawing)
    setattr(iterator, _PASS, drawing)


def give(iterator: Any, index: Any, batch: Any) -> None:
    """``iterator`` gave ``batch``, of the samples ``index``."""
    drawing: _Drawing | None = getattr(iterator, _PASS, None)
    if drawing is not None:
        if not drawing.recent and drawing.given:  # a pass that was done with, and goes on
            _passes.append(drawing)
        drawing.recent.append((drawing.given, index, _shapes_or_nothing(batch)))
        drawing.given += 1


def step_ends() -> None:
    """What was given before the step that ends now belongs to none that is kept."""
    for drawing in _passes:
        del drawing.recent[: drawing.before]
        drawing.before = len(drawing.recent)
    _passes[:] = [one for one in _passes if one.recent]


def shares(*, for_all: bool) -> tuple[LoaderShare, ...] | None:
    """Of each loader that gave batches to the step; ``for_all``: with what it gives other ranks.  None: what
    they will be is not known of one.
    """
    until = time.process_time() + MOST_S
    found = []
    for drawing in _passes:
        if drawing.recent:
            share = _share(drawing, until if for_all else None)
            if share is None:
                return None
            found.append(share)
    return tuple(found)


def _share(drawing: _Drawing, until: float | None) -> LoaderShare | None:
    sharing = list(_sharing(drawing.sampler)) if _is_sampler(drawing.sampler) else []
    own = _told([(index, shapes) for _, index, shapes in drawing.recent])
    if len(sharing) != 1 or own is None:
        return None
    _, (_, size), (_, place) = sharing[0]
    drawn: dict[int, Batches] = {}
    if until is not None and _drawn(drawing, place) == own:
        for other in range(size):
            if time.process_time() > until:
                break
            batches = own if other == place else _drawn(drawing, other)
            if batches is None:
                break
            drawn[other] = batches
    return LoaderShare(size, place, own, drawn)


def _drawn(drawing: _Drawing, place: int) -> Batches | None:
    """What the share ``place`` has where this rank had the batches of the step; None: who knows."""
    asked = _twin(drawing.sampler)
    ((holder, _, (whose, _)),) = _sharing(asked)
    setattr(holder, whose, place)
    loader_workers.set_random_states(drawing.numbers)
    first, last = drawing.recent[0][0], drawing.recent[-1][0]
    try:
        wanted = {number for number, *_ in drawing.recent}
        indices = list(islice(iter(asked), first, last + 1))
        indices = [one for number, one in zip(count(first), indices, strict=False) if number in wanted]
        fetcher = drawing.make()
        found = []
        for index in indices:
            if drawing.by_sample:  # samples of a batch are of equal shapes, or could not be put together
                one = _shapes(fetcher.fetch(list(index)[:1]), len(index))
            else:
                one = _shapes(fetcher.fetch(index))
            found.append((index, one))
    except Exception:  # the program's own code, asked in a way that it need not expect
        return None
    return _told(found) if len(found) == len(drawing.recent) else None


def _told(found: Sequence[tuple[Any, str]]) -> Batches | None:
    if not all(shapes for _, shapes in found):
        return None
    numbers = repr([_plain(index) for index, _ in found])
    return Batches(" ".join(shapes for _, shapes in found), hashlib.sha256(numbers.encode()).hexdigest())


def _plain(index: Any) -> Any:
    if isinstance(index, torch.Tensor | np.ndarray):
        return index.tolist()
    return [_plain(one) for one in index] if isinstance(index, list | tuple) else index


def _shapes_or_nothing(batch: Any) -> str:
    try:
        return _shapes(batch)
    except _UnknownError:
        return ""


def _shapes(batch: Any, count_of_samples: int = 0) -> str:
    """Types and shapes of what is in a batch; ``count_of_samples``: of which this one is the first."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        shape = list(batch.shape)
        if count_of_samples:
            shape[:1] = [count_of_samples]
        return f"{batch.dtype}{shape}".replace(" ", "")
    if batch is None or isinstance(batch, int | float):
        return type(batch).__name__
    if hasattr(batch, "items") and hasattr(batch, "keys"):
        inside = [f"{name}:{_shapes(one, count_of_samples)}" for name, one in batch.items()]
        return "{" + ",".join(inside) + "}"
    if isinstance(batch, list | tuple):
        return "(" + ",".join(_shapes(one, count_of_samples) for one in batch) + ")"
    raise _UnknownError  # texts, say, of which tokens are to be made


def _twin(thing: Any) -> Any:
    """A copy of a sampler, of those that it asks and of their random numbers."""
    if isinstance(thing, torch.Generator):
        made = torch.Generator(thing.device)
        made.set_state(thing.get_state())
        return made
    if isinstance(thing, random.Random | np.random.Generator | np.random.RandomState):
        return copy.deepcopy(thing)
    if not _is_sampler(thing):
        return thing
    made = copy.copy(thing)
    vars(made).update({name: _twin(one) for name, one in vars(thing).items()})
    return made


def _is_sampler(thing: Any) -> bool:
    if isinstance(thing, data.Sampler):
        return True
    kind = type(thing)
    return hasattr(thing, "__dict__") and hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__")


def _sharing(sampler: Any) -> Iterator[tuple[Any, tuple[str, int], tuple[str, int]]]:
    """Samplers that share out, with names and numbers of how many shares there are, and of their own one."""
    numbers = {name: one for name, one in vars(sampler).items() if type(one) is int}
    among = [(name, one) for name, one in numbers.items() if any(word in name for word in _AMONG)]
    whose = [(name, one) for name, one in numbers.items() if any(word in name for word in _WHOSE)]
    if len(among) == len(whose) == 1 and 0 <= whose[0][1] < among[0][1]:
        yield sampler, among[0], whose[0]
    for one in vars(sampler).values():
        if _is_sampler(one):
            yield from _sharing(one)
