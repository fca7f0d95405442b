"""A model's parts as kernels: what one rank launches for one microbatch, forward and backward.

The seam between ``workloads.models`` (which knows layers) and ``workloads.parallel`` (which knows who holds
which part, when it runs, and what is exchanged around it).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final, Literal

from simcore.records import dataclass

#: What of a model has a strategy of its own.
LayerClass = Literal["embedding", "dense", "transformer", "expert"]

#: Name of an entry that launches nothing: the host waits until the compute stream is empty.
HOST_SYNC: Final = "cudaStreamSynchronize"

#: Names of copies of what forward keeps to the host's memory and back, on streams of their own; the first is
#: waited for by nothing.
OFFLOAD: Final = "Memcpy DtoH (Device -> Pinned)"
RELOAD: Final = "Memcpy HtoD (Pinned -> Device)"
OFFLOAD_STREAM: Final = "offload"
RELOAD_STREAM: Final = "reload"

#: Stream of all_to_all that runs beside another microbatch's compute: what comes next does not wait for it.
EP_STREAM: Final = "ep"


@dataclass(frozen=True)
class KernelLaunch:
    """One launch: the columns of :data:`simcore.graph.ops.OP_COLUMNS` that a model decides.

    Shapes are local to the rank; ``flops`` count a multiply-add as 2.  With ``collective`` set it is one, on
    process group ``group`` and stream ``stream`` ("compute": in line), of ``num_bytes`` by nccl-tests'
    convention; "send_recv" goes to the member ``peer_delta`` further on and receives as much from the one
    before.  ``waits_for`` are positions, within the same list, of kernels on other streams that must have
    ended; ``saved_bytes`` is what it leaves for the backward pass, then or when it runs again.  Of a backward
    list: ``recomputed`` kernels repeat forward's, what ``weight_gradient`` kernels compute only the optimizer
    needs (zero-bubble schedules may run them later), and those that ``accumulates`` marks add a gradient to
    what earlier microbatches left.  ``launches``: kernels that the entry stands for (the products of all
    experts on a few streams); the host pays for each.  ``scratch_bytes``: what it allocates beside what it
    writes, and gives back behind it.  ``buffered``: what it gathers, or what its product is added to, lies in
    a buffer that is never given back.
    ``made_bytes``: of each storage that it makes, where it writes only slices of some (none where
    ``out_shapes`` is empty).  ``ends_bytes``: of a backward kernel, of what forward kept it is the last that
    reads the latest tensor of so many bytes.  ``leaves``: the next piece does not wait for it, but whichever
    first ``awaits`` what it leaves under that name.
    """

    name: str
    op_class: str = ""
    dtype: str = ""
    in_shapes: tuple[tuple[int, ...], ...] = ()
    out_shapes: tuple[tuple[int, ...], ...] = ()
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    module: str = ""
    stream: str = "compute"
    group: str = ""
    collective: str = ""
    num_bytes: int = 0
    reduce_op: str = ""
    peer_delta: int = 0
    waits_for: tuple[int, ...] = ()
    saved_bytes: int = 0
    recomputed: bool = False
    weight_gradient: bool = False
    accumulates: bool = False
    launches: int = 1
    host_us: float = 0.0
    scratch_bytes: int = 0
    buffered: bool = False
    made_bytes: tuple[int, ...] = ()
    ends_bytes: int = 0
    leaves: str = ""
    awaits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """One parameter tensor as the rank holds it before any data-parallel sharding.

    ``group`` says over whom its gradient is reduced: "dp" (all data-parallel ranks, context parallel ones
    included) or "expert_dp".  ``tp_duplicated``: equal on all tensor-parallel ranks (norms), whose gradients
    sequence parallelism must add up.  Without ``trainable`` it has neither gradient nor optimizer state.
    """

    name: str
    shape: tuple[int, ...]
    group: str = "dp"
    tp_duplicated: bool = False
    trainable: bool = True

    @property
    def numel(self) -> int:
        """Elements."""
        product = 1
        for size in self.shape:
            product *= size
        return product


@dataclass(frozen=True)
class Origins:
    """Which op of autograd each launch of a piece belongs to, and what is kept for its backward.

    ``forward``: the op's number, of each launch; ``backward``: the op's whose backward it is, and the forward
    launch that it runs again (-1: none).  ``needed``: bytes that backward asks for of what each forward
    launch reads, and of what it writes; ``kept``: those that are kept from forward to backward.
    ``keeps_input``: so are the ``input_bytes`` of the whole piece.
    """

    forward: tuple[int, ...]
    backward: tuple[tuple[int, int], ...]
    needed: tuple[tuple[int, int], ...]
    kept: tuple[tuple[int, int], ...]
    input_bytes: int
    keeps_input: bool


@dataclass(frozen=True, eq=False)
class ModelPiece:
    """A part that pipeline stages and FSDP units are made of: an embedding, a layer, the head with the loss.

    A collective on another stream that nothing in its list waits for is waited for by what follows the piece.
    ``first_forward`` comes before ``forward`` at the first microbatch only (weights cast to fp8).
    ``backward`` holds what recomputation repeats, marked.  ``saved_bytes`` is what the forward keeps until
    its backward (after the recompute policy).
    ``output_bytes``: the tensor that goes on to the next piece, as this rank holds it.
    ``layer_class``: whose strategy holds for it, where classes have one each.
    """

    name: str
    forward: tuple[KernelLaunch, ...]
    backward: tuple[KernelLaunch, ...]
    first_forward: tuple[KernelLaunch, ...]
    parameters: tuple[Parameter, ...]
    saved_bytes: int
    output_bytes: int
    output_shape: tuple[int, ...]
    origins: Origins
    layer_class: LayerClass = "dense"

    @cached_property
    def numel(self) -> Mapping[tuple[str, bool], int]:
        """Elements of its parameters by (group, whether they train)."""
        found: dict[tuple[str, bool], int] = {}
        for parameter in self.parameters:
            key = parameter.group, parameter.trainable
            found[key] = found.get(key, 0) + parameter.numel
        return found


@dataclass(frozen=True)
class ModelPieces:
    """The whole model in order: ``embedding``, ``layers`` (equal ones are the same object), ``head``.

    ``model_flops_per_sample``: forward and backward, causal attention counted once (what MFU counts);
    ``model_flops_full_per_sample``: attention as if not causal (Megatron's convention).
    """

    embedding: ModelPiece
    layers: tuple[ModelPiece, ...]
    head: ModelPiece
    model_flops_per_sample: float
    model_flops_full_per_sample: float

    @property
    def all_pieces(self) -> tuple[ModelPiece, ...]:
        """Embedding, layers and head, in order."""
        return (self.embedding, *self.layers, self.head)
