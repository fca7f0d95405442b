"""An output in one file: a rank's time as collapsed stacks, which flamegraph.pl and speedscope.app draw.

It is a function of a timeline, as all of simcore/report are: it needs neither the graph nor the engine.

    python docs/extend/output.py RUN_DIR RANK > stacks.txt
"""

import sys
from collections import Counter
from collections.abc import Iterator

from simcore.timeline import Timeline


def collapsed_stacks(timeline: Timeline, rank: int) -> Iterator[str]:
    """Lines "stream;phase;layer;kernel nanoseconds".  InputError for a rank outside the job."""
    rows = timeline.rank(rank, ["stream", "phase", "layer", "name", "start_ps", "end_ps"])
    total: Counter[str] = Counter()
    for row in rows.itertuples():
        layer = f"layer {row.layer}" if row.layer >= 0 else "no layer"
        total[f"{row.stream};{row.phase or 'no phase'};{layer};{row.name}"] += row.end_ps - row.start_ps
    for stack, ps in sorted(total.items()):
        yield f"{stack} {ps // 1000}"


if __name__ == "__main__":
    for line in collapsed_stacks(Timeline.open(sys.argv[1]), int(sys.argv[2])):
        print(line)
