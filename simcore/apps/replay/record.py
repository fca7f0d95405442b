"""A replay as a run folder: what reports, comparisons and exports work from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from simcore.analysis import analyse
from simcore.apps.replay.play import Replay
from simcore.graph import Graph, graph_hash
from simcore.hardware import hardware_hash
from simcore.report import default_ranks, write_perfetto
from simcore.timeline import RunFacts, RunInfo, Timeline, write_tables
from simcore.timeline.folder import run_folder

PERFETTO_FILE = "perfetto.json.gz"


def write_replay(out_dir: Path, replay: Replay, settings: Mapping[str, str]) -> RunInfo:
    """Write the replay to ``out_dir``, atomically, with a Perfetto file of its ranks.

    ``settings`` say how it was made.  The steps of a recording are one run; ``run.json`` says which ops
    belong to which (``workload.options.steps``: first and last op_id).
    Errors: InputError when ``out_dir`` is something else than a run folder.
    """
    graph, cluster = _with_steps(replay), replay.cluster
    facts = RunFacts(
        cluster=dataclasses.asdict(cluster),
        network=replay.network,
        graph_hash=graph_hash(replay.graph),
        profile_hash=hardware_hash(cluster),
        settings=dict(settings),
        memory=(),
        origins={name: share for name, share in replay.origins.items() if share},
        assumptions=("a replay: ops are those of a recording", *replay.notes),
        warnings=tuple(replay.doubts()),
    )
    with run_folder(out_dir) as folder:
        info = write_tables(folder, graph, replay.result, facts)
        timeline = Timeline.open(folder)
        write_perfetto(timeline, folder / PERFETTO_FILE, default_ranks(timeline, analyse(timeline)))
    return info


def _with_steps(replay: Replay) -> Graph:
    """The graph that was played, its workload saying where the recorded steps are."""
    steps = [
        {
            "rank": replay.rank_of[index],
            "step": max(step.number, 0),
            "first_op": int(rank.flat[members].min()),
            "last_op": int(rank.flat[members].max()),
        }
        for index, rank in enumerate(replay.job.ranks)
        for step, members in zip(rank.steps, rank.step_ops, strict=True)
    ]
    workload = replay.graph.workload
    options = {**workload.options, "steps": steps}
    return dataclasses.replace(replay.graph, workload=dataclasses.replace(workload, options=options))
