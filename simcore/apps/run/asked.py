"""What a run simulates: the workload before each edit and after the last, as the user's rules have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcore.apps.run.loading import Loaded, check_dims, check_world, kernel_mapping, loaded
from simcore.graph import Graph, verify
from simcore.hardware import ClusterSpec
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.apps.run.edits import EditStep
    from simcore.apps.run.scenario import Scenario
    from simcore.rules import Rule, Ruled
    from workloads.edits import Applied


@dataclass(frozen=True)
class AskedStates:
    """``states``: graphs and their clusters, of which the last is simulated for its timeline.

    ``before_rules``: its graph as rules found it.  ``done``: the edits; ``unordered``: what is wrong with the
    order of the graph as it came.
    """

    found: Loaded
    states: list[tuple[Graph, ClusterSpec]]
    before_rules: Graph
    done: list[Applied]
    ruled: Ruled | None
    unordered: list[str]

    def timed(self, steps_s: Sequence[float]) -> tuple[EditStep, ...]:
        """The edits, with the step times of all states in seconds."""
        if not self.done:
            return ()
        from simcore.apps.run.edits import timed

        return timed(self.done, steps_s)


def asked_states(scenario: Scenario, edits: Sequence[str], rules: Sequence[Rule]) -> AskedStates:
    """Load, edit, and apply rules.  InputError for what does not fit together."""
    settings = scenario.settings
    found = loaded(scenario)
    graph, cluster = found.graph, found.cluster
    check_dims(graph)
    unordered = [] if scenario.from_catalog else verify(graph)
    kernels = (
        str(graph.workload.options["kernels"]) if scenario.described else kernel_mapping(graph, settings)
    )
    states: list[tuple[Graph, ClusterSpec]] = [(graph, cluster)]
    done: list[Applied] = []
    if edits:
        from simcore.apps.run.edits import edit_program, traced_job  # and importers, slow to import

        job = traced_job(graph, cluster, kernels, settings.fp32_math, force=scenario.force)
        jobs, done = edit_program(job, edits)
        states = [(job.graph, job.cluster or cluster) for job in jobs]
    elif kernels:
        from simcore.graph import apply_kernels  # a described job has its kernels already

        states = [(apply_kernels(graph, kernels), cluster)]
    for state in states:
        check_world(*state)
    before_rules = states[-1][0]
    ruled: Ruled | None = None
    if rules:
        from simcore.rules import apply_rules

        for number, (issued, there) in enumerate(states):
            gpu = there.gpu.under_load(issued.world_size)
            ruled = apply_rules(issued, rules, gpu, fp32_math=settings.fp32_math)
            states[number] = ruled.graph, there
    return AskedStates(found, states, before_rules, done, ruled, unordered)
