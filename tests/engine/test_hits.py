"""Times of a cell of which one item was played are those of the whole cell, item by item and op by op."""

from dataclasses import replace

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from simcore.collectives import NcclPlanner
from simcore.engine.sequence import KernelSequence
from simcore.engine.shortcuts import simulate, solo
from simcore.engine.shortcuts.cell_times import CellBook
from simcore.engine.shortcuts.cells import num_ops
from simcore.graph.schedules import interleaved_one_f_one_b
from simcore.hardware import Topology, load_cluster
from tests.engine.lab import TableCost
from tests.engine.test_properties import KERNELS
from tests.engine.test_shortcut_properties import pipeline, shorter, waiting
from tests.engine.twelve_jobs import TWO_NODES, Job
from tests.symmetry import jobs


def told(cell, times):
    """All that is said of a cell, whichever way its kernels' times are kept."""
    ready, start, end, op_start, op_end = times.columns
    ops, n, first = [], 0, 0
    for stream in cell.items:
        for item in stream:
            stop = first + num_ops(item)
            if isinstance(item.work, KernelSequence) and start[n] >= 0:
                alone = item.work.alone
                ops += [(start[n] + a, start[n] + b) for a, b in zip(alone.before, alone.after, strict=True)]
            elif isinstance(item.work, KernelSequence):
                ops += zip(op_start[first:stop], op_end[first:stop], strict=True)
            else:
                ops.append((ready[n], start[n], end[n], *op_start[first:stop], *op_end[first:stop]))
            n, first = n + 1, stop
    return times.lasts_ps, times.changes, times.released, ops


def compared(monkeypatch, play, examples):
    """Courses that were found from one item in what random draws ``play``, all of them as when played whole:
    cell and changes of each.
    """
    seen, found_by, find, forget = [], {}, CellBook.find, CellBook.forget

    def noted(book, own, course):
        had_none = course.times is None
        found = find(book, own, course)
        if found and had_none:
            found_by.setdefault(book, []).append((own, course))
        return found

    def checked(book):
        """All has been played: until then, courses go on from those before them."""
        for own, course in found_by.pop(book, ()):
            ours = course.times
            book.end(book.begin(own, course), course)
            assert told(course.cell, ours) == told(course.cell, course.times)
            seen.append((course.cell, course.changes))
        forget(book)

    monkeypatch.setattr(CellBook, "find", noted)
    monkeypatch.setattr(CellBook, "forget", checked)
    monkeypatch.setattr(solo, "WORTH_OPS", 0)
    settings(max_examples=examples, phases=[Phase.generate], deadline=None)(play)()
    return seen


kernel_us = st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(1, 40), st.integers(1, 400))


@given(kernel_us, st.lists(st.integers(1, 3), min_size=8, max_size=8), st.sampled_from([4e11, 1e12, 3e12]))
def interleaved(us, layers, hbm_bytes_per_s):
    graph = jobs.pipeline(interleaved_one_f_one_b(4, 12, 2), tp=8, dp=1, layers=layers.__getitem__)
    where = jobs.topology(4)
    gpu = replace(where.cluster.gpu, hbm_bytes_per_s=hbm_bytes_per_s)
    names = ("gemm", "wgrad", "norm", "head")
    kernels = {name: replace(jobs.KERNELS[name], us=time) for name, time in zip(names, us, strict=True)}
    where = Topology(replace(where.cluster, gpu=gpu))
    simulate(graph, where, TableCost({**jobs.KERNELS, **kernels}), NcclPlanner(where))


@given(
    waiting, waiting, st.integers(1, 3), shorter, st.sampled_from([(2, 1), (2, 2), (4, 1)]),
    st.sampled_from([2, 30, 100]), st.integers(0, 2), st.sampled_from(["4us", "20us"]),
)  # fmt: skip
def behind_hosts(forward, backward, layers, short, degrees, message_mb, after, launch):
    graph = pipeline(forward, backward, layers, short, *degrees, message_mb, after)
    hardware = {**TWO_NODES, "gpu.launch_overhead_s": launch}
    Job(graph, load_cluster("h100-8", hardware), cost=TableCost(KERNELS)).play()


def test_one_item_tells_what_the_cell_does(monkeypatch):
    seen = compared(monkeypatch, interleaved, 8)
    assert len(seen) > 200
    shapes = {tuple(map(len, cell.items)) for cell, _ in seen}
    assert max(map(sum, shapes)) > 2


def test_behind_hosts_that_wait(monkeypatch):
    seen = compared(monkeypatch, behind_hosts, 20)
    assert any(cell.is_late for cell, _ in seen)
