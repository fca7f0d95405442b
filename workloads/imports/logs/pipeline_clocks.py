"""Clocks of stages against each other, and how long a send takes, from the log of a pipeline alone.

Stage b starts an action no earlier than stage a ended the one before it in the model, plus the transfer.
Forwards bound b's clock against a's from one side, backwards from the other; where both are tight, half of
what is left between them is the transfer (Cristian's algorithm on the pipeline's own messages).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcore.records import dataclass
from workloads.imports.logs.pipeline_log import LoggedAction, StageLog
from workloads.imports.logs.pipeline_plan import ActionKey, keys, producer


@dataclass(frozen=True)
class StageClocks:
    """``offset_ps[stage]``: how much later than the first stage's a stage's clock starts (smallest 0).

    ``p2p_ps``: time of a send by (sender, receiver).
    """

    offset_ps: tuple[int, ...]
    p2p_ps: dict[tuple[int, int], int]


def actions_by_key(stages: Sequence[StageLog]) -> dict[ActionKey, LoggedAction]:
    """All actions of an iteration."""
    return {
        key: action
        for stage, log in enumerate(stages)
        for key, action in zip(keys(stage, log.actions), log.actions, strict=True)
    }


def align_clocks(stages: Sequence[StageLog], num_chunks: int, v_shaped: bool) -> StageClocks:
    """Offsets and send times of one iteration."""
    slack: dict[tuple[int, int], int] = {}  # by (sender, receiver): the least, in their own clocks
    found = actions_by_key(stages)
    for key, action in found.items():
        source = producer(key, len(stages), num_chunks, v_shaped)
        if source is None or source.stage == key.stage or source not in found:
            continue
        pair = (source.stage, key.stage)
        waited = action.start_ps - found[source].end_ps
        slack[pair] = min(slack.get(pair, waited), waited)
    offset = [0]
    for stage in range(1, len(stages)):
        down, up = slack.get((stage - 1, stage)), slack.get((stage, stage - 1))
        # In one clock each slack is the transfer or more: what they differ by is the clocks' difference.
        shift = (up - down) // 2 if down is not None and up is not None else 0
        offset.append(offset[-1] + shift)
    for _ in stages:  # sends from the last stage to the first, of the next chunk, bound the clocks as well
        for (sender, receiver), waited in slack.items():
            offset[receiver] = max(offset[receiver], offset[sender] - waited)
    least = min(offset)
    p2p = {(a, b): max(0, waited + offset[b] - offset[a]) for (a, b), waited in slack.items()}
    return StageClocks(tuple(shift - least for shift in offset), p2p)


def arrivals(
    stages: Sequence[StageLog], clocks: StageClocks, num_chunks: int, v_shaped: bool
) -> tuple[StageClocks, dict[ActionKey, int]]:
    """When what an action needs has come from another stage, ps on its own stage's clock, where sends run
    beside computes; and the clocks, with sends no longer than that allows.

    Sends of one kind into one chunk follow one another: the i-th has come ``p`` after the later one of its
    source's end and the (i-1)-th.  No action starts before that for ``p`` of at most (start of the i-th - end
    of the j-th's source) / (i - j + 1), for all j up to i.
    """
    found = actions_by_key(stages)
    queues: dict[tuple[int, int, str, int], list[tuple[int, int, ActionKey]]] = {}
    for key, action in found.items():
        source = producer(key, len(stages), num_chunks, v_shaped)
        if source is not None and source.stage != key.stage and source in found:
            sent = found[source].end_ps + clocks.offset_ps[source.stage]
            needed = action.start_ps + clocks.offset_ps[key.stage]
            queues.setdefault((source.stage, key.stage, key.kind, key.chunk), []).append((sent, needed, key))
    p2p = dict(clocks.p2p_ps)
    for (sender, receiver, *_), queue in queues.items():
        queue.sort()
        for last, (_, needed, _) in enumerate(queue):
            least = min((needed - queue[j][0]) // (last - j + 1) for j in range(last + 1))
            p2p[sender, receiver] = max(0, min(p2p[sender, receiver], least))
    came: dict[ActionKey, int] = {}
    for (sender, receiver, *_), queue in queues.items():
        free = queue[0][0]
        for sent, _, key in queue:
            free = max(free, sent) + p2p[sender, receiver]
            came[key] = free - clocks.offset_ps[receiver]
    return StageClocks(clocks.offset_ps, p2p), came


def with_receives(stages: Sequence[StageLog], clocks: StageClocks) -> StageClocks:
    """The clocks, where a stage receives after its last action: a send is no longer than any such receive."""
    found = actions_by_key(stages)
    p2p = dict(clocks.p2p_ps)
    for stage, log in enumerate(stages):
        free = 0
        for key, action in zip(keys(stage, log.actions), log.actions, strict=True):
            source = producer(key, len(stages), 1, v_shaped=False)
            if source is not None and source in found:
                sent = found[source].end_ps + clocks.offset_ps[source.stage] - clocks.offset_ps[stage]
                received = max(0, action.start_ps - max(free, sent))
                p2p[source.stage, stage] = min(p2p[source.stage, stage], received)
            free = action.end_ps
    return StageClocks(clocks.offset_ps, p2p)


def contradictions(stages: Sequence[StageLog], num_chunks: int, v_shaped: bool) -> int:
    """How many actions started before what they need had ended, on aligned clocks."""
    clocks = align_clocks(stages, num_chunks, v_shaped)
    found = actions_by_key(stages)
    count = 0
    for key, action in found.items():
        source = producer(key, len(stages), num_chunks, v_shaped)
        if source is not None and source in found:
            end = found[source].end_ps + clocks.offset_ps[source.stage]
            count += end > action.start_ps + clocks.offset_ps[key.stage]
    return count


def typical_p2p_ps(clocks: Sequence[StageClocks]) -> int:
    """The median send of a log, ps; 0 for a single stage."""
    times = [time for found in clocks for time in found.p2p_ps.values()]
    return int(np.median(times)) if times else 0
