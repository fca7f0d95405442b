"""Two analysed runs side by side."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from simcore.analysis import Total, analyse, critical_path
from simcore.analysis.comparison import compare, compare_runs
from simcore.report.comparison import comparison_object, comparison_tables
from simcore.timeline import Timeline, write_run
from tests.synthetic import FACTS, two_stage_graph, two_stage_result


def test_ops_by_difference_per_rank(two_stage_run: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    run = replace(
        analyse(timeline),
        num_ranks=2,
        kernels=[(("mm",), Total(4, 600.0)), (("add",), Total(2, 100.0))],
        collectives=[(("all_reduce", "tp", "ring", "LL"), Total(2, 50.0))],
    )
    other = replace(
        run,
        num_ranks=4,
        kernels=[(("mm",), Total(8, 800.0)), (("fused",), Total(4, 20.0))],
        collectives=[(("all_reduce", "tp", "ring", "LL"), Total(4, 100.0))],
    )
    ops = compare((timeline.info, run), (timeline.info, other)).ops
    # Per rank: mm 300 -> 200, add 50 -> 0, fused 0 -> 5, all_reduce 25 -> 25.
    assert [(op.name, op.difference_ps) for op in ops] == [
        ("mm", -100.0),
        ("add", -50.0),
        ("fused", 5.0),
        ("all_reduce tp ring LL", 0.0),
    ]
    assert ops[0].calls == (2.0, 2.0)


def test_facts_that_differ(two_stage_run: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    run = analyse(timeline)
    changed = timeline.info.model_copy(update={"network": "alphabeta", "settings": {"gpu.clock": "2"}})
    found = compare((timeline.info, run), (changed, run))
    assert found.inputs == {"network": ("fluid", "alphabeta"), "settings.gpu.clock": (None, "2")}
    assert found.speedup == 1.0
    assert sorted(found.stages) == [0, 1]


def test_half_the_tokens_are_not_twice_the_speed(two_stage_run: Path) -> None:
    """B does half the tokens on twice the GPUs in 0.45 of the time."""
    timeline = Timeline.open(two_stage_run)
    info, run = timeline.info, analyse(timeline)
    half = info.workload.model_copy(update={"tokens_per_step": 300, "world_size": 4})
    flops = info.flops.model_copy(update={"model_causal": info.flops.model_causal // 2})
    quick = replace(run, step_ps=run.step_ps * 9 // 20, breakdown=run.breakdown.scaled(0.45))
    found = compare((info, run), (info.model_copy(update={"workload": half, "flops": flops}), quick))
    assert found.speedup == pytest.approx(1 / 0.45)
    assert found.speedup_per("tokens") == pytest.approx(0.5 / 0.45)  # 1.111
    shown = comparison_object(found)
    assert shown["speedup_per_token_and_gpu"] == pytest.approx(0.5 / 0.45 / 2)
    assert shown["tokens_per_step"] == [600, 300]
    first, *rest = shown["verdict"]
    assert first == "B trains 1.111 times the tokens/s of A: 0.5 times the tokens a step in 0.45 of the time"
    assert rest[0] == "on 2 times the GPUs: 0.556 times the tokens/s of each GPU"
    # A token takes 2 x 0.45 / 0.5 = 1.8 times the GPU time, each part of 300 ns likewise: compute was 120,
    # communication 80, idle 90, both at once 10.
    why = " ".join(rest[1:]).split(": ", 1)[1].split()
    assert " ".join(why) == (
        "GPU time for a token +80.0%, of which exposed compute +32.0%, idle +24.0%, exposed communication"
        " +21.3%, overlapped +2.7%"
    )
    text = StringIO()
    Console(file=text, width=80).print(comparison_tables(found, ("a", "b")))
    assert "GPU time for a token" in text.getvalue()


def test_the_same_work_is_compared_by_the_step(two_stage_run: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    run = analyse(timeline)
    slower = replace(run, step_ps=2 * run.step_ps, breakdown=run.breakdown.scaled(2))
    shown = comparison_object(compare((timeline.info, run), (timeline.info, slower)))
    assert shown["verdict"][0] == "B runs at 0.500 times the speed of A"
    assert shown["verdict"][1].startswith("why: step time +100.0%, of which exposed compute +40.0%")


def test_the_critical_paths_explain_the_whole_difference(two_stage_run: Path, tmp_path: Path) -> None:
    first = Timeline.open(two_stage_run)
    graph, result = two_stage_graph(), two_stage_result()
    # Rank 1's all_reduce ends 50 ns later, and with it the step.
    last = result.times[1]
    end = last.end_ps.copy()
    end[end == end.max()] += 50_000
    slower = replace(
        result, times=(result.times[0], replace(last, end_ps=end)), step_ps=result.step_ps + 50_000
    )
    write_run(tmp_path / "slower", graph, slower, FACTS)
    found = compare_runs(first, Timeline.open(tmp_path / "slower"))
    assert (
        sum(row.difference_ps for row in found.path)
        == found.runs[1].step_ps - found.runs[0].step_ps
        == 50_000
    )
    path = critical_path(first)
    assert sum(work + wait for work, wait in path.by_op.values()) == path.step_ps
    shown = comparison_object(found)["path"]
    assert sum(row["difference_s"] for row in shown) == pytest.approx(50e-9)


def test_a_stream_of_another_name_is_the_same_work(two_stage_run: Path, tmp_path: Path) -> None:
    """A recording numbers its streams, a traced program names them."""
    first = Timeline.open(two_stage_run)
    graph = two_stage_graph()
    numbered = {name: str(number) for number, name in enumerate(graph.ops.stream.values, start=7)}
    streams = replace(graph.ops.stream, values=tuple(numbered.values()))
    renamed = replace(graph, ops=replace(graph.ops, stream=streams))
    write_run(tmp_path / "renamed", renamed, two_stage_result(), FACTS)
    assert critical_path(first).by_op
    assert compare_runs(first, Timeline.open(tmp_path / "renamed")).path == ()


def test_long_inputs_leave_room_for_their_names(two_stage_run: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    run = analyse(timeline)
    changed = timeline.info.model_copy(update={"settings": {"gpu.clock": "2 " * 500}})
    tables = comparison_tables(compare((timeline.info, run), (changed, run)), ("a", "b"))
    console = Console(width=100, record=True, file=StringIO())
    console.print(tables)
    assert "settings.gpu.clock" in console.export_text()


def test_facts_are_told_in_units_and_never_squeeze_their_names_out(two_stage_run: Path) -> None:
    timeline = Timeline.open(two_stage_run)
    run = analyse(timeline)
    cluster = {**timeline.info.cluster, "nic_bytes_per_s": 25e9, "a_key_of_many_letters": "x" * 200}
    settings = {"cluster.nic_bytes_per_s": "25GB/s"}
    changed = timeline.info.model_copy(update={"cluster": cluster, "settings": settings, "commit": "0" * 40})
    found = compare((timeline.info, run), (changed, run))
    assert "settings.cluster.nic_bytes_per_s" not in found.inputs  # said once
    console = Console(width=80, file=StringIO(), record=True)
    console.print(comparison_tables(found, ("a", "b")))
    text = console.export_text()
    assert "25 GB/s" in text and "cluster.nic_bytes_per_s" in text and "cluster.a_key_of_many_l" in text
