"""Constants of kernel formulas, one file per GPU generation: ``hardware_profiles/cost/<generation>.toml``.

A generation fixes how kernels are *written*: tiles, pipelining, persistence.
How fast the GPU is stands in its :class:`~simcore.hardware.specs.GpuSpec`.  So A100 and A800, or H100,
H800 and H200, share one file, and a GPU without any measured row is predicted from its profile alone.
Every table of a file names its ``source``; ``fitted`` says whether a fit to measured rows gave it.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final

from simcore.records import dataclass
from simcore.tables import Maybe, Plain, Share, Text, keys_of, load_named, read

Tile = tuple[int, int]


@dataclass(frozen=True)
class GemmParameters:
    """How a generation's GEMM kernels behave in one math unit (tensor cores or CUDA cores).

    ``efficiency``: share of peak in the main loop of the best tile, before the power limit.
    ``operand_intensity``: multiply-adds per loaded element at which operand delivery and math take equal
    time; a tile of ``m x n`` has ``m n / (m + n)``.
    ``l2_share``: of the profile's L2 bandwidth that operands get; ``multicast``: SMs that one fetch serves
    (thread block clusters; 1 before Hopper).
    ``tile_latency_s``: filling the pipeline of one tile; ``epilogue_s``: draining the largest tile.
    ``tail_share``: how much of the idle part of the last wave is really lost (1: whole waves).
    ``accumulators``: output elements that the blocks on an SM hold in registers, so that small tiles run side
    by side (0: one block at a time).
    ``split_latency_s``: reduction after split-K.
    ``warm_l2_share``: share of L2 that still holds inputs.
    ``hbm_share``: share of peak HBM bandwidth that the kernel can draw.
    ``overlap_loss``: share of the shorter of math and memory time that does not hide behind the longer.
    ``throttle_s``: kernel time by which half of the power throttling has set in.
    ``prologue_s``: start cost beyond the gap between kernels.
    ``misaligned_slowdown``: of rows aligned to 2 bytes rather than 16.
    ``persistent``: "static" (one block per SM, tiles dealt out at start), "dynamic" or "none".
    ``scales_apart``: scales of blocks of 128 are CUDA cores' work beside the tensor cores' (which take them
    along since Blackwell).
    ``swept_l2_share``: of L2, what holds the smaller operand for kernels that walk along all of it for each
    column of tiles of the larger (names with "cutlass"; 0: none does).
    """

    tiles: tuple[Tile, ...]
    splits: tuple[int, ...]
    tile_k: int
    efficiency: Share
    operand_intensity: float
    l2_share: Share
    multicast: int
    tile_latency_s: float
    epilogue_s: float
    tail_share: Share
    accumulators: int
    split_latency_s: float
    warm_l2_share: Share
    hbm_share: Share
    overlap_loss: Share
    throttle_s: float
    prologue_s: float
    misaligned_slowdown: float
    persistent: Annotated[str, Text(("none", "static", "dynamic"))]
    fitted: bool
    source: str
    scales_apart: bool = True
    swept_l2_share: float = 0.0


@dataclass(frozen=True)
class AttentionParameters:
    """One family of fused attention kernels on one generation.

    ``math_efficiency``: share of tensor peak that the products alone reach; ``operand_rows``: query rows that
    one read of keys and values from shared memory serves; ``overlap_loss``: share of the shorter of products,
    operands and softmax that does not hide behind the longest.  ``tile_q``: query rows that an SM works on
    at a time (two blocks of 128 where they fit), a multiple of ``tile_k``, the keys of a step.
    ``block_s``: start and end of a block.  ``backward_efficiency`` and ``backward_overlap_loss``: the same in
    backward.  ``prologue_s``: start cost.  ``wide_share``: of the math efficiency that is left for heads
    wider than ``wide_head_dim``, whose accumulators fill the registers.  ``wide_tile_q``: ``tile_q`` of
    those heads (0: the same): two tiles' accumulators of them do not fit.  ``wide_pairs``: where SMs are idle
    two of them share a block of wide heads.  ``backward_wide_share``: that share in backward (0: the same).
    ``step_s``: least time that a block takes for a step, whose scores, softmax and values wait for each
    other.  ``softmax_instructions``: of CUDA cores for a score in forward beside the exponential: scale less
    maximum (a multiply-add), running maximum, running sum, half a conversion to 16 bits (two at a time).
    """

    math_efficiency: Share
    operand_rows: int
    overlap_loss: Share
    tile_q: int
    tile_k: int
    block_s: float
    wide_head_dim: int
    wide_share: Share
    backward_efficiency: Share
    backward_overlap_loss: Share
    prologue_s: float
    persistent: Annotated[str, Text(("none", "static", "dynamic"))]
    fitted: bool
    source: str
    wide_tile_q: int = 0
    wide_pairs: bool = False
    backward_wide_share: float = 0.0
    step_s: float = 0.0
    softmax_instructions: float = 3.5


@dataclass(frozen=True)
class TrafficParameters:
    """A memory-bound class: passes over inputs and outputs, kernels launched, share of usable bandwidth.

    ``waits``: what threads wait for each other beyond the start of a kernel (reductions across blocks), in
    starts (``MemoryParameters.prologue_s``).
    ``instructions``: integer instructions per element on the way (random numbers, gathered addresses).
    ``fitted``: whether recorded kernels of the class gave its constants.
    """

    read_passes: float
    write_passes: float
    launches: int
    bandwidth_share: Share
    waits: float = 0.0
    instructions: float = 0.0
    fitted: bool = False


@dataclass(frozen=True)
class MemoryParameters:
    """All memory-bound kernels of a generation.

    ``ramp_bytes``: transfer that the first memory latency costs, bytes / (bytes + ramp) being the share of
    full bandwidth.  ``warm_l2_share``: share of L2 that still holds what earlier kernels wrote.
    ``prologue_s``: start cost beyond the gap.  ``index_instructions``: integer instructions per element of a
    kernel that computes the address of each (tensors that are not contiguous, broadcast, or pieces of one
    another), ``index_waits``: its latency beyond the start, in starts.  ``pcie_bytes_per_s``: host-device
    copies, one direction.
    """

    ramp_bytes: float
    warm_l2_share: Share
    prologue_s: float
    index_instructions: float
    index_waits: float
    pcie_bytes_per_s: float
    classes: dict[str, TrafficParameters]
    source: str


@dataclass(frozen=True)
class GenerationParameters:
    """All constants of one GPU generation.  ``attention`` is by kernel family (flash1, flash2, ...).

    ``fitted_on``: profiles of the GPUs whose rows the constants of products and attention were fitted to.
    """

    generation: str
    tensor: GemmParameters
    simt: GemmParameters
    attention: dict[str, AttentionParameters]
    default_attention: str
    memory: MemoryParameters
    fp4: GemmParameters | None = None
    blockwise: GemmParameters | None = None
    fitted_on: tuple[str, ...] = ()

    def products(self, mode: str, *, on_cuda_cores: bool, in_blocks: bool = False) -> GemmParameters:
        """Constants of products in a math mode; those of 16-bit ones where narrow ones have none.

        ``in_blocks``: fp8 with a scale for each block of 128.
        """
        if on_cuda_cores:
            return self.simt
        own = self.fp4 if mode == "fp4" else self.blockwise if mode == "fp8" and in_blocks else None
        return own or self.tensor


_UNITS: Final = ("tensor", "simt", "fp4", "blockwise")

#: A file has products by unit in a table [gemm].
_SCHEMA: Final = {
    **{k: rule for k, rule in keys_of(GenerationParameters).items() if k not in _UNITS},
    "gemm": {
        "tensor": GemmParameters,
        "simt": GemmParameters,
        "fp4": Maybe(GemmParameters),
        "blockwise": Maybe(GemmParameters),
    },
    "since": Plain(integer=True),  # the year of its first GPU
}


@cache
def load_parameters(generation: str) -> GenerationParameters:
    """Constants of ``generation``.

    Errors: InputError for an unknown generation, an unknown or missing key, a value out of range.
    """
    table = load_named(_SCHEMA, "cost", generation, "no kernel constants for GPU generation")
    return _parameters(table, f"hardware_profiles/cost/{generation}.toml")


def parse_parameters(text: str, where: str) -> GenerationParameters:
    """Constants from the text of a file; ``where`` names it in messages.  Errors: InputError."""
    return _parameters(read(_SCHEMA, text, where), where)


def _parameters(table: dict[str, Any], where: str) -> GenerationParameters:
    Text(tuple(table["attention"])).from_value(table["default_attention"], f"{where}: default_attention")
    own = {key: value for key, value in table.items() if key not in ("gemm", "since")}
    return GenerationParameters(**own, **table["gemm"])
