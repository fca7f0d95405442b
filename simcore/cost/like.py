"""Constants of kernels for a GPU whose generation has none of its own: those of the one that it is like."""

from __future__ import annotations

from dataclasses import replace

from simcore.cost.parameters import GenerationParameters, load_parameters
from simcore.hardware import load_gpu
from simcore.hardware.specs import GpuSpec

#: Latencies are so many clock cycles.
_OF_PRODUCTS = ("tile_latency_s", "epilogue_s", "split_latency_s", "prologue_s")
_OF_ATTENTION = ("block_s", "step_s", "prologue_s")


def parameters_of(gpu: GpuSpec) -> GenerationParameters:
    """Constants for ``gpu``; latencies of another generation last as many cycles of its clock.

    InputError for a generation that has no constants and is like none.
    """
    known = load_parameters(gpu.table("cost"))
    if known.generation == gpu.generation or not known.fitted_on:
        return known
    cycles = load_gpu(known.fitted_on[0]).boost_clock_hz / gpu.boost_clock_hz
    products = {
        unit: replace(own, **{name: cycles * getattr(own, name) for name in _OF_PRODUCTS})
        for unit in ("tensor", "simt", "fp4", "blockwise")
        if (own := getattr(known, unit)) is not None
    }
    attention = {
        family: replace(own, **{name: cycles * getattr(own, name) for name in _OF_ATTENTION})
        for family, own in known.attention.items()
    }
    memory = replace(known.memory, prologue_s=cycles * known.memory.prologue_s)
    return replace(known, **products, attention=attention, memory=memory)
