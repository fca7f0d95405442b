"""1F1B, plain and interleaved: one schedule by two names, as the number of chunks says which it is."""

from __future__ import annotations

from dataclasses import replace

from simcore.graph.schedules.actions import Schedule
from simcore.graph.schedules.kind import ScheduleKind, register
from simcore.graph.schedules.orders import looped


def one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """1F1B with flush (PipeDream-Flush, arXiv 2006.09503): warm-up, alternate, cool-down."""
    return interleaved_one_f_one_b(num_stages, num_microbatches, 1)


def interleaved_one_f_one_b(
    num_stages: int, num_microbatches: int, num_chunks: int, *, group_size: int = 0
) -> Schedule:
    """Interleaved 1F1B (arXiv 2104.04473, section 2.2), in Megatron's order; one chunk is plain 1F1B.

    Microbatches advance in groups of ``group_size`` (0: ``num_stages``): a group on chunk 0, the same group
    on chunk 1, ...  InputError (with several chunks) when the last group would be smaller than the stages:
    some of them would wait for themselves.
    """
    return looped(num_stages, num_microbatches, num_chunks, group_size, hop=2)


_PLAIN = register(ScheduleKind("1f1b", lambda *counts: looped(*counts, hop=2), proven=True))
register(replace(_PLAIN, name="interleaved"))
