"""Recommendation models: sizes as published, what travels when, what differs between ranks, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simcore
from simcore.errors import InputError, OutOfMemoryError
from simcore.hardware import load_cluster
from simcore.run import Setup, run
from workloads.jobs import Description, complete
from workloads.models.listed import BlockModel
from workloads.models.lookups import TablesSpec
from workloads.models.zoo import listed_model
from workloads.parallel.job import Job
from workloads.parallel.members import members_of
from workloads.parallel.static import fullest, table_bytes

#: Billions of parameters in tables: MLPerf's README (24 B), 204 M rows of 128 in DCNv2's, NVIDIA's table of
#: sizes (4.2, 22.8 and 113 B), MAD-Max's table 2.
_TABLES = {
    "dlrm-mlperf-v1": 24.0, "dlrm-dcnv2-mlperf": 26.1, "dlrm-small": 4.2, "dlrm-large": 22.8,
    "dlrm-extra-large": 113.0, "dlrm-a": 801.0, "dlrm-b": 332.0, "dlrm-12t": 12000.0,
}  # fmt: skip
_SMALL = ({"rows": 4000, "dim": 16, "pooling": 4}, {"rows": 100_000, "dim": 16}, {"rows": 50, "dim": 16})


def _job(num_gpus: int = 8, **parts: Any) -> Description:
    blocks = [
        {"block": "features", "width": 13},
        {"block": "tables", "tables": list(_SMALL), "name": "rows"},
        {"block": "mlp", "widths": [64, 16], "name": "bottom"},
        {"block": "dot"},
        {"block": "mlp", "widths": [64, 32], "name": "top"},
        {"block": "click"},
    ]
    return complete({"model": {"blocks": blocks}, **parts}, "here", num_gpus=num_gpus)


def _names(job: Description) -> list[str]:
    return job.graph().ops.name.tolist()


@pytest.mark.parametrize("name", _TABLES)
def test_tables_have_as_many_parameters_as_published(name: str) -> None:
    model = listed_model(name)
    assert isinstance(model, BlockModel)
    tables = [table for block in model.blocks if isinstance(block, TablesSpec) for table in block.tables]
    numel = sum(one.rows * one.dim * one.count for one in tables)
    assert numel / 1e9 == pytest.approx(_TABLES[name], rel=0.02)


def test_rows_travel_beside_the_bottom_network_and_the_interaction_waits() -> None:
    names = _names(_job(parallel={"strategy": {"tables": "table_wise"}}))
    first = names.index(next(name for name in names if name.startswith("table_lookup")))
    exchange = next(k for k in range(first, len(names)) if names[k].startswith("nccl::all_to_all:from"))
    bottom = next(k for k in range(first, len(names)) if names[k].startswith("aten::mm"))
    arrived = names.index("table_outputs")
    assert first < exchange < bottom < arrived


def test_ranks_with_other_tables_run_other_programs_and_folding_is_exact() -> None:
    job = _job(4, parallel={"strategy": {"tables": "table_wise"}})
    graph = job.graph()
    # Three tables on four ranks: three of their own, and one without.
    assert [program.rank_list() for program in graph.programs] == [[0], [1], [2], [3]]
    alike = _job(4, parallel={"strategy": {"tables": "row_wise"}}).graph()
    assert [program.rank_list() for program in alike.programs] == [[0, 1, 2, 3]]
    cluster = load_cluster("h100", {"cluster.num_nodes": "1"})
    for each in (graph, alike):
        folded, plain = (run(each, cluster, Setup(fold=fold)) for fold in (True, False))
        assert folded.result.step_ps == plain.result.step_ps


def test_memory_is_that_of_the_fullest_rank_and_of_its_optimizers_rows() -> None:
    job = Job.of(_job(4, parallel={"strategy": {"tables": "table_wise"}}, training={"optimizer": "adam"}))
    assert len(members_of(job)) == 4
    weights, states = table_bytes(fullest(job))
    assert (weights, states) == (100_000 * 16 * 4, 2 * 100_000 * 16 * 4)
    rows = Job.of(_job(4, parallel={"strategy": {"tables": "row_wise"}}))
    # Adagrad: one fp32 sum for each element; rows over four ranks, rounded up (50 / 4 is 13).
    assert table_bytes(fullest(rows)) == ((26_000 + 13) * 16 * 4,) * 2


@pytest.mark.parametrize(
    ("training", "expected"),
    [({}, True), ({"frozen": ["embedding"]}, False), ({"trainable": "none"}, False)],
    ids=["all", "network", "none"],
)
def test_frozen_tables_are_looked_up_and_not_updated(training: Any, expected: bool) -> None:
    names = _names(_job(training=training))
    assert any(name.startswith("table_lookup") for name in names)
    assert any(name.startswith("table_update") for name in names) == expected
    # Without gradients of tables nothing goes back either.
    assert any(name.startswith("table_gradients") for name in names) == expected


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        ([{"block": "tables", "tables": []}, {"block": "click"}, {"block": "click"}], "no tables; nearest"),
        ([{"block": "features"}, {"block": "dot"}, {"block": "click"}], "no tables stand before this block"),
        ([{"block": "features", "width": 24}, {"block": "tables", "tables": list(_SMALL)}, {"block": "dot"},
          {"block": "click"}], "tables of 16 columns meet features of 24; nearest: 24 columns each"),
        ([{"block": "tables", "tables": list(_SMALL), "cached": 0.5}, {"block": "concat"},
          {"block": "click"}],
         "rows in HBM are all there; nearest: memory: uvm"),
    ],
)  # fmt: skip
def test_lists_that_cannot_be_are_refused(blocks: list[Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        complete({"model": {"blocks": blocks}}, "here", num_gpus=2).graph()


@pytest.mark.parametrize(
    ("key", "said", "told"),
    [
        ("dense", "mp", "strategy.dense='mp': one or two of ddp, fsdp, tp"),
        ("embedding", "ddp.fsdp.mp", "one or two of mp, ddp"),
        ("expert", "fsdb", "did you mean 'fsdp'"),
    ],
)
def test_words_that_a_class_does_not_take_are_refused(key: str, said: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        _job(parallel={"strategy": {key: said}})


@pytest.mark.parametrize("strategy", [{"embedding": "ddp"}, {"tables": "data_parallel"}])
def test_out_of_memory_names_the_table_and_what_would_fit(strategy: dict[str, str]) -> None:
    # 26 tables of 97.4 GiB in fp32, whole on each of eight GPUs of 80 GiB.
    job = simcore.describe("dlrm-dcnv2-mlperf", cluster="a100-8", parallel={"strategy": strategy})
    with pytest.raises(OutOfMemoryError) as told:
        simcore.simulate(job)
    assert "tables of rank 0: 97.36 GiB in 26 tables or parts, the largest tables1.0 (40," in str(told.value)
    ((key, _),) = strategy.items()
    better = {"embedding": "mp", "tables": "balanced"}[key]
    assert f"would fit: --set parallel.strategy.{key}={better}" in str(told.value)


def test_a_run_says_gpu_hours_and_cost_of_samples(tmp_path: Path) -> None:
    job = simcore.describe("dlrm-small", cluster="a100-8", training={"global_batch": 32768})
    run = simcore.simulate(job)
    found = run.cost(4.2e9, "azure")
    # Eight GPUs for 4.2e9 / 32768 steps; ND96amsr_A100_v4 is 32.77 USD an hour, a GPU of it an eighth.
    hours = 8 * 4.2e9 / 32768 * run.step_time_s / 3600
    assert found.counted == "samples"
    assert found.gpu_hours == pytest.approx(hours)
    assert found.cost == pytest.approx(hours * 4.0963)
    ours = tmp_path / "ours.toml"
    ours.write_text('currency = "EUR"\ndate = 2026-03-01\nsource = "ours"\n[per_gpu_hour]\nh100-sxm = 2.5\n')
    with pytest.raises(InputError, match="no price of A100-SXM4-80GB, only of H100"):
        run.cost(1e9, str(ours))


def test_blocks_of_a_named_model_are_changed_by_name_kind_or_place() -> None:
    def tables(**model: object) -> TablesSpec:
        job = complete({"model": {"model": "dlrm-mlperf-v1", **model}}, "job", num_gpus=8)
        assert isinstance(job.model, BlockModel)
        (found,) = (block for block in job.model.blocks if isinstance(block, TablesSpec))
        return found

    usual = tables()
    for said in ("tables", "1"):
        changed = tables(blocks={said: {"memory": "uvm", "cached": 0.1}})
        assert changed == usual.model_copy(update={"memory": "uvm", "cached": 0.1})
    with pytest.raises(InputError, match="no block to change; did you mean 'tables'"):
        tables(blocks={"tabels": {"memory": "uvm"}})


def test_keys_sorted_in_forward_are_there_before_their_gradients() -> None:
    # HugeCTR sorts 1.3 million keys beside products (0.15 ms); within backward the update waits for them.
    found = {}
    for when in ("forward", "backward"):
        job = simcore.describe(
            "dlrm-dcnv2-mlperf", cluster="h100-8", training={"micro_batch": 6912},
            software={"preset": "hugectr", "keys_sorted": when},
        )  # fmt: skip
        step = simcore.simulate(job)
        ops = step.timeline.rank(0)
        sort, sent = (ops[ops.name.str.startswith(name)].iloc[0] for name in ("key_sort", "table_gradients"))
        assert bool(sort.end_ps < sent.start_ps) is (when == "forward")
        assert (sort.stream == "index") is (when == "forward")
        found[when] = step.step_time_s
    assert found["forward"] < found["backward"]
