"""What limits trust in a recording, said once of all ranks that it is said of."""

from workloads.imports.job import ImportReport, RankReport


def test_what_is_said_of_many_ranks_is_said_once():
    ranks = [
        RankReport(
            rank, "t", gpu_ops=1500, ops_without_launch=late, steps=1, span_s=1.0, outside_steps=outside
        )
        for rank, late, outside in ((0, 1200, 0.0), (1, 7, 0.25), (2, 900, 0.5), (4, 7, 0.0))
    ]
    said = ImportReport(tuple(ranks), 8).doubts()
    assert [line for line in said if line.startswith("rank")] == [
        "ranks 0-2, 4: 7 to 1200 of 1500 ops have no launch call: taken as launched before what is recorded",
        "ranks 1-2: 25% to 50% of the time of GPU ops lies in no step",
    ]
    assert ImportReport((ranks[1],), 1).doubts()[-2:] == [
        "rank 1: 25% of the time of GPU ops lies in no step",
        "rank 1: 7 of 1500 ops have no launch call: taken as launched before what is recorded",
    ]
