"""Constants of kernel formulas, one file per GPU generation: ``hardware_profiles/cost/<generation>.toml``.

A generation (volta, ampere, hopper) fixes how kernels are *written*: tiles, pipelining, persistence.
How fast the GPU is stands in its :class:`~simcore.hardware.specs.GpuSpec`.  So A100 and A800, or H100,
H800 and H200, share one file, and a GPU without any measured row is predicted from its profile alone.
Every table of a file names its ``source``; ``fitted`` says whether a fit to measured rows gave it.
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from simcore.errors import InputError, nearest

Tile = tuple[int, int]

PERSISTENCE = ("none", "static", "dynamic")


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
    """

    tiles: tuple[Tile, ...]
    splits: tuple[int, ...]
    tile_k: int
    efficiency: float
    operand_intensity: float
    l2_share: float
    multicast: int
    tile_latency_s: float
    epilogue_s: float
    tail_share: float
    accumulators: int
    split_latency_s: float
    warm_l2_share: float
    hbm_share: float
    overlap_loss: float
    throttle_s: float
    prologue_s: float
    misaligned_slowdown: float
    persistent: str
    fitted: bool
    source: str


@dataclass(frozen=True)
class AttentionParameters:
    """One family of fused attention kernels on one generation.

    ``math_efficiency``: share of tensor peak that the products alone reach; ``operand_rows``: query rows that
    one read of keys and values from shared memory serves; ``overlap_loss``: share of the shorter of products,
    operands and softmax that does not hide behind the longest.  ``tile_q``: query rows that an SM works on
    at a time (two blocks of 128 where they fit), a multiple of ``tile_k``, the keys of a step.
    ``block_s``: start and end of a block.  ``backward_efficiency`` and ``backward_overlap_loss``: the same in
    backward.  ``prologue_s``: start cost.  ``wide_share``: of the math efficiency that is left for heads
    wider than ``wide_head_dim``, whose accumulators fill the registers.
    """

    math_efficiency: float
    operand_rows: int
    overlap_loss: float
    tile_q: int
    tile_k: int
    block_s: float
    wide_head_dim: int
    wide_share: float
    backward_efficiency: float
    backward_overlap_loss: float
    prologue_s: float
    persistent: str
    fitted: bool
    source: str


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
    bandwidth_share: float
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
    warm_l2_share: float
    prologue_s: float
    index_instructions: float
    index_waits: float
    pcie_bytes_per_s: float
    classes: dict[str, TrafficParameters]
    source: str


@dataclass(frozen=True)
class GenerationParameters:
    """All constants of one GPU generation.  ``attention`` is by kernel family (flash1, flash2, ...)."""

    generation: str
    tensor: GemmParameters
    simt: GemmParameters
    attention: dict[str, AttentionParameters]
    default_attention: str
    memory: MemoryParameters


def generations() -> tuple[str, ...]:
    """Names of the generations that have constants."""
    folder = resources.files("hardware_profiles") / "cost"
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")))


@cache
def load_parameters(generation: str) -> GenerationParameters:
    """Constants of ``generation``.

    Errors: InputError for an unknown generation, an unknown or missing key, a value out of range.
    """
    known = generations()
    if generation not in known:
        raise InputError(f"no kernel constants for GPU generation {generation!r}{nearest(generation, known)}")
    text = (resources.files("hardware_profiles") / "cost" / f"{generation}.toml").read_text(encoding="utf-8")
    return parse_parameters(text, f"hardware_profiles/cost/{generation}.toml")


def parse_parameters(text: str, where: str) -> GenerationParameters:
    """Constants from the text of a file; ``where`` names it in messages.  Errors: InputError."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: {error}") from None
    try:
        gemm, memory = raw["gemm"], dict(raw["memory"])
        classes = {
            name: _build(TrafficParameters, table, f"{where} [memory.classes.{name}]")
            for name, table in memory.pop("classes").items()
        }
        memory["classes"] = classes
        parameters = GenerationParameters(
            generation=raw["generation"],
            tensor=_build(GemmParameters, gemm["tensor"], f"{where} [gemm.tensor]"),
            simt=_build(GemmParameters, gemm["simt"], f"{where} [gemm.simt]"),
            attention={
                name: _build(AttentionParameters, table, f"{where} [attention.{name}]")
                for name, table in raw["attention"].items()
            },
            default_attention=raw["default_attention"],
            memory=_build(MemoryParameters, memory, f"{where} [memory]"),
        )
    except KeyError as error:
        raise InputError(f"{where}: missing {error}") from None
    if parameters.default_attention not in parameters.attention:
        hint = nearest(parameters.default_attention, parameters.attention)
        raise InputError(f"{where}: default_attention {parameters.default_attention!r} has no table{hint}")
    return parameters


_T = TypeVar("_T")

#: Fields that are shares of something: 0 to 1.
_SHARES = {
    "efficiency", "tail_share", "warm_l2_share", "hbm_share", "overlap_loss", "math_efficiency",
    "backward_efficiency", "backward_overlap_loss", "bandwidth_share", "wide_share", "l2_share",
}  # fmt: skip


def _build(kind: type[_T], table: dict[str, Any], where: str) -> _T:
    names = {spec.name: spec for spec in fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in names:
            raise InputError(f"{where}: unknown key {key!r}{nearest(key, names)}")
    values: dict[str, Any] = {}
    for name, spec in names.items():
        if name not in table:
            if spec.default is MISSING:
                raise InputError(f"{where}: missing key {name!r}")
            continue
        values[name] = _checked(name, table[name], where)
    return kind(**values)


def _checked(name: str, value: Any, where: str) -> Any:
    if name == "tiles":
        return tuple((int(m), int(n)) for m, n in value)
    if name == "splits":
        return tuple(int(split) for split in value)
    if name == "persistent" and value not in PERSISTENCE:
        raise InputError(f"{where}: persistent {value!r}{nearest(str(value), PERSISTENCE)}")
    if isinstance(value, bool | str | dict):
        return value
    if not value >= 0 or value == float("inf"):
        raise InputError(f"{where}: {name} = {value} must be a number >= 0")
    if name in _SHARES and value > 1:
        raise InputError(f"{where}: {name} = {value} is a share and must be <= 1")
    return value
