"""DistSim's search over 15 strategies of 16 GPUs, under assumptions for what it leaves open."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.apps.measured.runs.cache import StepTimes
from simcore.apps.validate.runs.page.searches import search_lines, search_plot
from simcore.apps.validate.runs.ranking import (
    GRID,
    PUBLISHED,
    PUBLISHED_BEST,
    REFERENCE,
    STRATEGIES,
    VARIANTS,
    Strategy,
    StrategySearch,
    kendall_of_orders,
    search,
)
from simcore.hardware import load_cluster
from simcore.memory import peak_memory
from workloads.parallel.generate import generate


def test_fifteen_strategies_share_a_batch_of_sixteen() -> None:
    # Powers of two with M x P x D = 16: 15 ways to give 4 factors of two to three degrees.
    assert len(set(STRATEGIES)) == 15
    for assumed in (REFERENCE, *GRID, *VARIANTS):
        for strategy in STRATEGIES:
            case = assumed.case(strategy)
            samples = case.microbatches * case.training.micro_batch * case.parallel.dp
            assert (case.parallel.world_size, samples) == (16, 16)


def test_a_pipeline_is_fed_as_assumed() -> None:
    by_name = {f"{a.microbatches}": a for a in GRID}
    fed = {name: a.case(Strategy(1, 8, 2)).microbatches for name, a in by_name.items()}
    assert fed == {"one": 1, "four": 4, "samples": 8}  # 8 samples for each of two replicas
    alone = {name: a.case(Strategy(2, 1, 8)).microbatches for name, a in by_name.items()}
    assert alone == {"one": 1, "four": 1, "samples": 2}


def test_the_choice_finds_the_published_best_and_its_distance_to_the_worst() -> None:
    strategies = [s for s in STRATEGIES if s.name in ("2M1P8D", "1M1P16D", "4M1P4D", "1M2P8D", "1M16P1D")]
    (found,) = search([REFERENCE], strategies=strategies)
    assert (found.best, found.place) == (PUBLISHED_BEST, 1)
    # One microbatch: 16 GPUs work one after the other.  In sample: one input was chosen to fit.
    assert found.worst == "1M16P1D"
    assert found.ratio == pytest.approx(PUBLISHED["ratio"][1], rel=0.25)


def test_every_strategy_of_the_choice_fits_without_recomputation() -> None:
    gpu = load_cluster("a10-16").gpu
    for strategy in STRATEGIES:
        case = REFERENCE.case(strategy)
        graph = generate(case.model, case.parallel, case.training, case.software)
        assert max(program.total for program in peak_memory(graph)) < gpu.hbm_bytes - gpu.reserved_bytes


def test_times_are_kept(tmp_path: Path) -> None:
    one = [Strategy(1, 16, 1)]
    times = StepTimes(tmp_path / "times.jsonl")
    (first,) = search([REFERENCE], strategies=one, times=times)
    lines = (tmp_path / "times.jsonl").read_text(encoding="utf-8").splitlines()
    (again,) = search([REFERENCE], strategies=one, times=StepTimes(tmp_path / "times.jsonl"))
    assert (len(lines), again.steps_per_s) == (1, first.steps_per_s)


def _searches() -> list[StrategySearch]:
    slower = {"2M1P8D": 2.0, "1M16P1D": 0.5, "4M1P4D": 1.0}
    other = {"2M1P8D": 1.0, "1M16P1D": 0.4, "4M1P4D": 1.5}
    return [
        StrategySearch(REFERENCE, slower),
        StrategySearch(VARIANTS[0], other),
        StrategySearch(GRID[0], slower),
    ]


def test_orders_are_compared_pair_by_pair() -> None:
    chosen, other, _ = _searches()
    assert (chosen.ratio, other.place) == (4.0, 2)
    # Of three pairs one changes sides: (2 - 1) / 3.
    assert kendall_of_orders(chosen, other) == pytest.approx(1 / 3)
    assert kendall_of_orders(chosen, chosen) == 1.0


def test_the_page_shows_bands_places_and_what_was_published() -> None:
    page = "\n".join(search_lines(_searches()))
    assert "| best / worst | 4.00 | 7.379 predicted, 7.488 measured |" in page
    assert "| one port per node | 4M1P4D | 1.50 | 1M16P1D | 0.40 | 3.75 | 2 | 0.33 |" in page
    assert "| 2M1P8D | 2.00 | 1.00 to 2.00 |" in page
    name, drawn = search_plot(_searches())
    # Two bars each, both in the legend; three dots of the choice and the published best.
    assert (name, drawn.count("#9cc3e6"), drawn.count("#dbe9f6"), drawn.count("<circle")) == (
        "distsim",
        4,
        4,
        4,
    )
    assert "best, measured: 2.97" in drawn
