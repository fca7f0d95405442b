"""What a process allocates before its first step and in its optimizer, by the habits of its framework.

Note [Before the first step, and behind each]
    Megatron makes parameters one by one.  With the distributed optimizer it then makes one buffer of them and
    one of gradients, of all and of experts, copies each parameter over and lets the first ones go, whose
    segments stay cached (``param_and_grad_buffer.py``); masters are fp32 copies of a 16-bit clone each
    (``distrib_optimizer.py``).  DeepSpeed flattens on the host, so that only buffers arrive
    (``stage_1_and_2.py``), and fills the optimizer's states before the first step.  FSDP has shards from the
    start, which are the masters.  Moments come with the first ``step()`` of everybody else: they fall into
    what the first step's activations have left cached, and later steps find other blocks.  An optimizer that
    works in fp32 on 16-bit gradients copies those it owns, and lets them go before the next forward;
    PyTorch's Adam without a fused kernel has a copy of all second moments then (``_multi_tensor_adam``).

Note [The step of ZeRO-1]
    DeepSpeed's ZeRO-1 (``stage_1_and_2.py``) on gradients in the model's dtype, which autograd made in the
    step's first backward: copies of as many as a bucket holds are reduced; each gradient of the rank's share
    is copied to fp32 to look for overflow, and to fp64 for its norm; gradients of others are released, the
    share is copied flat and then to fp32, and released.  Parameters are gathered through as large a copy.
    The next step's first backward makes gradients anew, among what its activations have left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from simcore.memory.lifetimes import EMBEDDING, HEAD, StorageHolder
from simcore.records import dataclass
from workloads.models.pieces import Parameter
from workloads.parallel.job import Job
from workloads.parallel.stages import Chunk
from workloads.parallel.static import WIDE, StaticMemory, narrow_bytes


def layer_number(chunk: Chunk, position: int) -> int:
    """The model's number of a piece's layer, or which end it is."""
    layer = chunk.layers[position]
    if layer >= 0:
        return chunk.first_layer + layer
    return EMBEDDING if chunk.has_embedding and position == 0 else HEAD


@dataclass
class LastingStorages:
    """Storages of a stage that outlive its passes; see Note [Before the first step, and behind each].

    ``static``: how much it is; shared out among parameter tensors by their elements.  ``alloc`` (bytes,
    holder) makes a storage and gives its number, ``free`` releases it.
    """

    job: Job
    stage: int
    static: StaticMemory
    alloc: Callable[[int, StorageHolder], int]
    free: Callable[[int], None]
    _owned: list[tuple[Parameter, int]] = field(init=False)

    def __post_init__(self) -> None:
        self._owned = [
            (parameter, layer_number(chunk, position))
            for chunk in self.job.chunks[self.stage]
            for position, piece in enumerate(chunk.pieces)
            for parameter in piece.parameters
        ]
        self._trained = [pair for pair in self._owned if pair[0].trainable]

    def before(self) -> None:
        """What is there when the first step begins."""
        job, static = self.job, self.static
        megatron = job.training.engine == "megatron" and not job.is_fsdp
        apart: list[int] = []
        if static.flat:
            frozen = [pair for pair in self._owned if not pair[0].trainable]
            self._each("parameters", static.parameters - static.flat, frozen)
            apart = self._each("parameters", static.copied, self._trained)
            self._buffers("parameters", static.flat, self._trained)
        else:
            self._each("parameters", static.parameters, self._owned)
        if job.gradients_go_in_step:
            pass  # the first backward makes them
        elif megatron or job.by_deepspeed:
            self._buffers("gradients", static.gradients, self._trained)
        else:
            self._each("gradients", static.gradients, self._trained)
        for storage in apart:
            self.free(storage)
        self._masters(cloned=megatron)
        if job.training.engine == "deepspeed":
            self._moments()
        self.alloc(static.buckets, StorageHolder("buffers", "buckets"))
        for name, num_bytes in static.kept:
            self.alloc(num_bytes, StorageHolder("buffers", name))

    def step(self, gradients: Mapping[int, int], *, first: bool) -> None:
        """The optimizer's step: what stays of the ``first`` one, and what each has for its own time.

        ``gradients`` that it releases: storages and their bytes, in the order of parameters.
        """
        if first and self.job.training.engine != "deepspeed":
            self._moments()
        if self.job.gradients_go_in_step and self.job.by_zero1:
            self._zero1(gradients)
            return
        own = [
            storage
            for name, num_bytes in self.static.step
            for storage in self._each("temporaries", num_bytes, self._trained, name)
        ]
        for storage in (*own, *gradients):  # zero_grad sets the latter to None
            self.free(storage)

    def _zero1(self, gradients: Mapping[int, int]) -> None:
        """See Note [The step of ZeRO-1]; the share is the first one, which has the embedding."""
        narrow, share = narrow_bytes(self.job), self.static.masters // WIDE
        largest = max((parameter.numel for parameter, _ in self._trained), default=0)
        numel = sum(parameter.numel for parameter, _ in self._trained)
        bucket = min(numel, max(self.job.training.bucket_parameters, largest))
        beside = min(largest, share)
        if not self.job.training.bucket_buffer:
            self._passing("gradients to reduce", narrow * bucket)
        self._passing("gradient in fp32", WIDE * beside)
        self._passing("gradient in fp64", 2 * WIDE * beside)
        own, before = [], 0
        for storage, num_bytes in gradients.items():
            if before < narrow * share:
                own.append(storage)
            else:
                self.free(storage)
            before += num_bytes
        flat = self.alloc(narrow * share, StorageHolder("temporaries", "flat gradients"))
        wide = self.alloc(WIDE * share, StorageHolder("temporaries", "gradients in fp32"))
        for storage in (flat, *own, wide):
            self.free(storage)
        self._passing("gathered parameters", narrow * bucket)

    def _passing(self, name: str, num_bytes: int) -> None:
        self.free(self.alloc(num_bytes, StorageHolder("temporaries", name)))

    def _masters(self, *, cloned: bool) -> None:
        narrow = narrow_bytes(self.job)
        for parameter, layer, size in self._shares(self.static.masters, self._trained):
            clone = -1
            if cloned:
                holder = StorageHolder("temporaries", "clone of a parameter", "", layer)
                clone = self.alloc(size * narrow // WIDE, holder)
            self.alloc(size, StorageHolder("optimizer states", f"{parameter.name}, master copy", "", layer))
            if cloned:
                self.free(clone)

    def _moments(self) -> None:
        names = ("first moment", "second moment")[: 2 if self.job.training.optimizer == "adam" else 1]
        for parameter, layer, size in self._shares(self.static.moments, self._trained):
            for number, name in enumerate(names):
                share = size * (number + 1) // len(names) - size * number // len(names)
                self.alloc(share, StorageHolder("optimizer states", f"{parameter.name}, {name}", "", layer))

    def _buffers(self, category: str, num_bytes: int, owned: Sequence[tuple[Parameter, int]]) -> None:
        """One of what all data-parallel ranks share, one of experts."""
        name = f"buffer of {category}"
        total = sum(parameter.numel for parameter, _ in owned)
        given = before = 0
        for group in ("dp", "expert_dp"):
            before += sum(parameter.numel for parameter, _ in owned if parameter.group == group)
            share = num_bytes * before // total - given if total else num_bytes - given
            given += share
            if share:
                of = f"{name} of experts" if group == "expert_dp" else name
                self.alloc(share, StorageHolder(category, of))

    def _each(
        self, category: str, num_bytes: int, owned: Sequence[tuple[Parameter, int]], what: str = ""
    ) -> list[int]:
        """``num_bytes`` in a storage for each parameter."""
        return [
            self.alloc(
                size,
                StorageHolder(category, f"{parameter.name}{f', {what}' if what else ''}", "", layer),
            )
            for parameter, layer, size in self._shares(num_bytes, owned)
        ]

    def _shares(
        self, num_bytes: int, owned: Sequence[tuple[Parameter, int]]
    ) -> list[tuple[Parameter, int, int]]:
        """``num_bytes`` shared out by elements."""
        elements = sum(parameter.numel for parameter, _ in owned)
        before = given = 0
        found = []
        for parameter, layer in owned if num_bytes > 0 else ():
            before += parameter.numel
            share = num_bytes * before // elements - given
            given += share
            found.append((parameter, layer, share))
        return found
