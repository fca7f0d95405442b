"""Ranks that were simulated one by one and did the same share rows, and are told as if each had its own."""

from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal

from simcore.timeline import Timeline
from simcore.timeline.writer import write_run
from tests.symmetry import jobs
from tests.synthetic import FACTS


@pytest.mark.parametrize("job", [jobs.dense_3d, jobs.expert_parallel])
def test_an_unfolded_run_is_told_as_the_folded_one(job, tmp_path: Path) -> None:
    graph, where = job(), jobs.topology(16)
    told = []
    for fold in (True, False):
        result = jobs.run(graph, where, fold=fold)
        write_run(tmp_path / str(fold), graph, result, FACTS)
        told.append(Timeline.open(tmp_path / str(fold)))
    folded, plain = told
    assert folded.info.num_rank_classes < plain.info.num_rank_classes == graph.world_size
    assert plain.num_rows == folded.num_rows
    assert plain.info.digest == folded.info.digest == plain.digest()
    for rank in range(graph.world_size):
        ours, theirs = (one.rank(rank).drop(columns="rank_class") for one in (plain, folded))
        assert_frame_equal(ours, theirs)


def test_ranks_at_other_times_keep_their_rows(tmp_path: Path) -> None:
    graph, where = jobs.data_parallel(), jobs.topology(8)
    slow = jobs.slow_ranks(where, graph.world_size, 1.5, [3])
    result = jobs.run(graph, where, fold=False, variants=slow)
    write_run(tmp_path / "run", graph, result, FACTS)
    timeline = Timeline.open(tmp_path / "run")
    assert timeline.representative(3) == 3 != timeline.representative(4)
    assert timeline.rank(3)["end_ps"].tolist() == result.times[3].end_ps.tolist()
    assert timeline.rank(4)["end_ps"].tolist() == result.times[4].end_ps.tolist()
