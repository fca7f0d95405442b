"""Sweeps: rows are what ``run_sim.py`` says, nothing is done twice, and no case ends the others."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
import yaml

from simcore.apps.plan.asking import asked as plan_asked
from simcore.apps.plan.journal import Journal
from simcore.apps.run import outcome
from simcore.apps.run.run_sim import run_sim
from simcore.apps.sweep import sweeping
from simcore.apps.sweep.command import sweep
from simcore.apps.sweep.spec import sweep_spec
from simcore.errors import InfeasibleError, InputError
from simcore.hardware import load_cluster

MODEL = {"layers": 2, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1024}
JOB = {
    "model": MODEL, "cluster": "h100-8", "training": {"seq": 128, "global_batch": 8, "micro_batch": 1},
}  # fmt: skip
GRID = {**JOB, "grid": {"parallel.tp": [1, 2, 3], "training.recompute": ["none", "full"]}}


def written(folder: Path, content: object) -> Path:
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.fixture
def ask(tmp_path, capsys):
    """Sweep ``content`` in ``tmp_path/out``; its JSON object and its rows."""

    def run(content, **options):
        sweep(written(tmp_path, content), **{"out": tmp_path / "out", "as_json": True, **options})
        told = json.loads(capsys.readouterr().out)
        return told, pq.read_table(told["rows"]).to_pylist()

    return run


@pytest.fixture
def poison(monkeypatch):
    """Have a simulation with so many samples in its batch do something else, in whatever process it is."""

    def put(acts):
        real = outcome.run_scenario

        def run(scenario, *args, **options):
            batch = scenario.described.overrides.get("training.global_batch", "")
            if int(batch) in acts:
                acts[int(batch)]()
            return real(scenario, *args, **options)

        monkeypatch.setattr(outcome, "run_scenario", run)

    return put


def test_rows_are_what_run_sim_says(ask, tmp_path, capsys):
    cases = [
        {"parallel.tp": 2, "gpu.clock": 0.9},
        {"cluster": "h200-8", "network": "alphabeta"},
        {"training.global_batch": 16, "parallel.pp": 2},
    ]
    told, rows = ask({**JOB, "cases": cases})
    assert (told["num_cases"], told["num_done"], told["num_simulated"]) == (3, 3, 3)
    job = written(tmp_path, JOB)
    asked = [
        {"settings": ["parallel.tp=2", "gpu.clock=0.9"]},
        {"cluster": "h200-8", "network": "alphabeta"},
        {"settings": ["training.global_batch=16", "parallel.pp=2"]},
    ]
    for row, options in zip(rows, asked, strict=True):
        run_sim(str(job), **options, out=tmp_path / "run", force=True, perfetto=False, as_json=True)
        one = json.loads(capsys.readouterr().out)
        assert row["status"] == "done"
        for key in ("step_time_s", "tokens_per_s", "mfu", "peak_memory_bytes", "gpus", "warnings"):
            assert row[key] == one[key], key
        assert {f"{part}_s": row[f"{part}_s"] for part in one["breakdown_s"]} == {
            f"{part}_s": seconds for part, seconds in one["breakdown_s"].items()
        }
        assert (row["band_low_s"], row["band_high_s"]) == (one["band"]["low_s"], one["band"]["high_s"])
    assert rows[0]["gpu.clock"] == 0.9
    assert rows[1]["cluster"] == "h200-8"


def test_a_grid_is_every_combination_and_what_cannot_be_says_why(ask):
    told, rows = ask(GRID)
    assert [(row["parallel.tp"], row["training.recompute"]) for row in rows] == [
        (tp, how) for tp in (1, 2, 3) for how in ("none", "full")
    ]
    assert [row["status"] for row in rows] == ["done"] * 4 + ["refused"] * 2
    assert "tp x cp x pp=3 does not divide 8 GPUs" in rows[4]["reason"]
    best = max(rows[:4], key=lambda row: row["tokens_per_s"])
    assert told["best"]["case"] == best["case"]


def test_what_is_done_is_not_done_again_and_rows_are_the_same(ask, tmp_path):
    _, rows = ask(GRID)
    store = tmp_path / "out" / "simulations.jsonl"
    lines = store.read_text().splitlines()
    assert len(lines) == 4
    # A kill left two whole lines and half of a third.
    store.write_text("\n".join([*lines[:2], lines[2][:50]]))
    told, again = ask(GRID)
    assert (told["num_known"], told["num_simulated"]) == (2, 2)
    assert again == rows
    told, again = ask(GRID)
    assert (told["num_known"], told["num_simulated"]) == (4, 0)
    assert again == rows


def test_cases_of_one_content_are_simulated_once(ask, tmp_path):
    # 1 is the default of pp; all three are one question.
    told, rows = ask({**JOB, "cases": [{"parallel.pp": 1}, {"parallel.tp": 1}, {"parallel.pp": 1}]})
    assert told["num_simulated"] == 1
    assert len({row["step_time_s"] for row in rows}) == 1
    assert len((tmp_path / "out" / "simulations.jsonl").read_text().splitlines()) == 1


def test_a_poisoned_case_is_told_and_the_others_are_done(ask, poison, tmp_path):
    tried = tmp_path / "tried"

    def die():
        with tried.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)

    def eat():
        raise MemoryError

    poison({16: lambda: {}["no such key"], 24: lambda: time.sleep(60), 32: die, 40: eat})
    content = {**JOB, "grid": {"training.global_batch": [8, 16, 24, 32, 40, 48, 56]}}
    told, rows = ask(content, limit=2.0, workers=2)
    by_batch = {row["training.global_batch"]: row for row in rows}
    assert [by_batch[batch]["status"] for batch in (8, 48, 56)] == ["done"] * 3
    assert "KeyError: 'no such key'" in by_batch[16]["reason"]
    assert by_batch[24]["reason"] == "ended after 2 s"
    assert by_batch[32]["reason"] == "ended by signal 9"
    assert tried.read_text() == "xx"  # once more, alone
    assert "memory" in by_batch[40]["reason"]
    assert [row["status"] for row in rows].count("failed") == len(told["failed"]) == 4
    # They are kept as failed until somebody asks for them again.
    poison({})
    told, _ = ask(content)
    assert (told["num_simulated"], len(told["failed"])) == (0, 4)


def test_what_failed_is_tried_again_when_asked_for(ask, poison, monkeypatch):
    poison({16: lambda: {}["no such key"]})
    content = {**JOB, "grid": {"training.global_batch": [8, 16]}}
    assert len(ask(content)[0]["failed"]) == 1
    monkeypatch.undo()
    told, rows = ask(content, retry=True)
    assert (told["num_simulated"], told["failed"]) == (1, [])
    assert rows[1]["status"] == "done"


def test_parts_merge_to_the_whole(ask, tmp_path):
    _, whole = ask(GRID, out=tmp_path / "whole")
    parts = [ask(GRID, shard=f"{number}/4", out=tmp_path / "parts")[0] for number in range(1, 5)]
    assert [part["num_cases"] for part in parts] == [2, 2, 1, 1]  # cases 1 and 5, 2 and 6, 3, 4
    told, rows = ask(GRID, out=tmp_path / "parts")  # of parts in one folder nothing is left to do
    assert (told["num_simulated"], rows) == (0, whole)
    ask(GRID, shard="1/2", out=tmp_path / "elsewhere")
    told, _ = ask(GRID, merge=[tmp_path / "elsewhere"], out=tmp_path / "here")
    assert (told["num_done"], told["num_open"], told["num_simulated"]) == (2, 2, 0)
    told, rows = ask(GRID, merge=[tmp_path / "parts"], out=tmp_path / "here")
    assert (told["num_open"], rows) == (0, whole)


def test_plans_and_sweeps_share_outcomes(ask, tmp_path):
    ask({**JOB, "grid": {"parallel.tp": [1, 2]}})
    question = plan_asked(str(written(tmp_path, JOB)), None, []).question
    journal = Journal(tmp_path / "out" / "simulations.jsonl", question)
    rows = pq.read_table(tmp_path / "out" / "cases.parquet").to_pylist()
    assert journal.known({"parallel.tp": "2"}).step_s == rows[1]["step_time_s"]
    assert journal.known({"parallel.tp": "4"}) is None


def test_an_interrupt_keeps_what_is_done_and_says_how_to_go_on(ask, poison, tmp_path, capsys):
    def interrupt():
        time.sleep(0.5)  # the first is done by then
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)

    content = {**JOB, "grid": {"training.global_batch": [8, 16, 24]}}
    poison({16: interrupt})
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & has it ignored
    try:
        with pytest.raises(typer.Exit) as end:
            ask(content, workers=1)
    finally:
        signal.signal(signal.SIGINT, heard)
    assert end.value.exit_code == 130
    said = capsys.readouterr()
    assert json.loads(said.out)["num_open"] == 2
    assert "ask again to go on" in said.err
    poison({})
    assert len((tmp_path / "out" / "simulations.jsonl").read_text().splitlines()) == 1


def test_nothing_that_fits_is_infeasible(tmp_path):
    huge = {"model": "llama3-70b", "cluster": "h100-8", "grid": {"training.seq": [8192]}}
    with pytest.raises(InfeasibleError, match="no case fits"):
        sweep(written(tmp_path, huge), out=tmp_path / "out")
    row = pq.read_table(tmp_path / "out" / "cases.parquet").to_pylist()[0]
    assert row["status"] == "out_of_memory"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("text", "expected a job's keys"),
        (JOB, "nothing varies"),
        ({**JOB, "gird": {}}, "did you mean 'grid'"),
        ({**JOB, "grid": [1]}, "grid must map keys to lists"),
        ({**JOB, "grid": {"parallel.tp": []}}, "'parallel.tp' has no values"),
        ({**JOB, "grid": {"parallel.tpp": [1]}}, "did you mean 'parallel.tp'"),
        ({**JOB, "grid": {"tp": [1]}}, "did you mean 'parallel.tp'"),
        ({**JOB, "grid": {"gpu.clok": [1]}}, "did you mean 'gpu.clock'"),
        ({**JOB, "grid": {"paralel.tp": [1]}}, "did you mean 'parallel.tp'"),
        ({**JOB, "grid": {"parallel.tp": [[1]]}}, "expected a text or a number"),
        ({**JOB, "grid": {"workload": ["llama3-8b"]}}, "either workload, or a description"),
        ({"workload": "llama3-8b", "grid": {"model": ["llama3-8b"]}}, "with workload, not with model"),
        ({"workload": "job.yaml", "grid": {"seed": [1]}}, "goes into this one"),
        ({**JOB, "cases": [1]}, "number 1 must map keys"),
        ({**JOB, "cases": []}, "must be a list"),
        ({**JOB, "grid": {"seed": [1]}, "cases": [{"seed": 2}]}, "seed is in grid and in cases"),
        ({**JOB, "grid": {"seed": list(range(1001)), "parallel.tp": list(range(1000))}}, "1,001,000 cases"),
        ({**JOB, "grid": {"cluster": ["h10-8"]}}, "all cases are refused"),
        ({**JOB, "model": "lama3-8b", "grid": {"seed": [1]}}, "did you mean 'llama3-8b'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_nearest_name(tmp_path, content, named):
    with pytest.raises(InputError, match=named):
        sweep(written(tmp_path, content), out=tmp_path / "out")


PRICES = 'currency = "EUR"\nsource = "our contract"\ndate = 2026-03-01\n[per_gpu_hour]\nh100-sxm = 3.6\n'


def test_prices_are_columns_and_change_no_simulation(ask, tmp_path):
    (tmp_path / "ours.toml").write_text(PRICES)
    grid = {"parallel.tp": [1, 2], "prices": ["ours.toml", "aws"]}
    told, rows = ask({**JOB, "grid": grid})
    assert told["num_simulated"] == 2  # prices that differ are no other questions
    for row in rows:
        # 3.60 an hour are 0.001 a second, on each of 8 GPUs; AWS asks 55.04 for such a machine.
        euros = row["prices"] == "ours.toml"
        per_s = 0.008 if euros else 55.04 / 3600
        assert row["currency"] == ("EUR" if euros else "USD")
        assert row["cost_per_step"] == pytest.approx(per_s * row["step_time_s"])
        assert row["cost_per_million_tokens"] == pytest.approx(1e6 * per_s / row["tokens_per_s"])
    assert told["cheapest"] is None  # of euros and dollars none is
    # What is known is priced without a simulation.
    told, rows = ask({**JOB, "grid": {"parallel.tp": [1, 2, 3]}}, prices=str(tmp_path / "ours.toml"))
    assert (told["num_known"], told["num_simulated"]) == (2, 0)
    assert [row["cost_per_step"] is None for row in rows] == [False, False, True]
    assert told["cheapest"]["cost_per_million_tokens"] == min(
        row["cost_per_million_tokens"] for row in rows if row["status"] == "done"
    )
    assert "cost_per_step" not in ask(GRID)[1][0]


def test_prices_that_cannot_be_are_refused_before_anything_is_simulated(tmp_path):
    (tmp_path / "ours.toml").write_text(PRICES)
    for content, prices, named in (
        ({**GRID, "prices": "asw"}, None, "'aws'"),
        ({**GRID, "prices": "aws"}, "aws", "leave out --prices"),
        ({**GRID, "prices": "../ours.toml"}, None, "ours.toml"),
        ({**GRID, "cluster": "h200-8", "prices": "ours.toml"}, None, "no price of H200"),
        ({**JOB, "grid": {"price": ["aws"]}}, None, "did you mean 'prices'"),
    ):
        with pytest.raises(InputError, match=named):
            sweep(written(tmp_path, content), out=tmp_path / "out", prices=prices)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"shard": "0/2"}, "--shard"),
        ({"shard": "3/2"}, "--shard"),
        ({"shard": "1"}, "--shard"),
        ({"limit": 0.0}, "--case-limit"),
        ({"merge": [Path("nowhere.jsonl")]}, "cannot read"),
        ({"ray": "local"}, "pip install ray"),
        ({"ray": "local", "workers": 2}, "--workers"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path, monkeypatch, options, named):
    monkeypatch.setattr("simcore.apps.workers.seam.find_spec", lambda name: None)
    with pytest.raises(InputError, match=named):
        sweep(written(tmp_path, GRID), **{"out": tmp_path / "out", **options})


def test_a_file_that_changes_meanwhile_ends_the_sweep(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    config = {
        "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 256, "num_attention_heads": 4,
        "vocab_size": 512, "intermediate_size": 512,
    }  # fmt: skip
    path.write_text(json.dumps(config))
    real = sweeping.take

    def take(*args, **options):
        path.write_text(json.dumps({**config, "num_hidden_layers": 2}))
        real(*args, **options)

    monkeypatch.setattr(sweeping, "take", take)
    spec = written(tmp_path, {**JOB, "model": "config.json", "grid": {"parallel.tp": [1]}})
    with pytest.raises(InputError, match="tp=1: a worker reads other files than were asked about"):
        sweep(spec, out=tmp_path / "out")


def test_files_that_a_spec_names_lie_beside_it(tmp_path, monkeypatch):
    config = {
        "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 256, "num_attention_heads": 4,
        "vocab_size": 512, "intermediate_size": 512,
    }  # fmt: skip
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "config.json").write_text(json.dumps(config))
    path = written(tmp_path / "deep", {"cluster": "h100-8", "grid": {"model": ["config.json", "llama3-8b"]}})
    monkeypatch.chdir(tmp_path)
    spec = sweep_spec(path)
    on = load_cluster("h100-8")
    layers = [spec.scenario(case).described.complete(on).model.layers for case in spec.cases()]
    assert layers == [1, 32]
