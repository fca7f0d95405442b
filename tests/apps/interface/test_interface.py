"""Python in five lines: answers are those of the commands, and wrong questions are one clear error."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import simcore
from simcore.errors import InputError, OutOfMemoryError
from simcore.report import write_kineto
from tests.commands import simcore as command

ROOT = Path(__file__).parents[3]
SMALL = {"layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096, "vocab": 32000, "name": "small"}


@pytest.fixture(scope="module")
def job():
    return simcore.describe(
        "llama3-8b", cluster="h100-8", parallel={"tp": 2}, training={"seq": 4096, "global_batch": 8}
    )


@pytest.fixture(scope="module")
def result(job):
    return simcore.simulate(job)


def test_the_answer_is_that_of_run_sim(result, tmp_path, capsys):
    words = ["run-sim", "llama3-8b", "--cluster", "h100-8", "--json", "--out", tmp_path / "run"]
    for key, value in {"parallel.tp": 2, "training.seq": 4096, "training.global_batch": 8}.items():
        words += ["--set", f"{key}={value}"]
    assert command(*words) == 0
    said = json.loads(capsys.readouterr().out)
    mine = result.as_dict()
    for key in ("step_time_s", "band", "nearest", "breakdown_s", "mfu", "tokens_per_s", "peak_memory_bytes"):
        assert mine[key] == said[key], key
    assert simcore.open_run(tmp_path / "run").timeline.digest() == result.timeline.digest()


def test_a_result_tells_its_parts(job, result):
    assert result.band.low_s < result.step_time_s < result.band.high_s
    assert sum(result.breakdown_s.values()) == pytest.approx(result.step_time_s)
    # tp 2 x dp 4 on 8 GPUs; 8 samples of 4,096 tokens
    assert result.tokens_per_s == pytest.approx(8 * 4096 / result.step_time_s)
    rank = result.timeline.rank(5)
    assert set(rank["rank"]) == {5}
    assert rank.end_ps.max() / 1e12 == pytest.approx(result.step_time_s)
    assert list(result.memory.stage) == [0]
    assert job.memory.word == "fits"
    assert any("tp, cp and pp leave" in line for line in job.assumptions)


def test_answers_show_themselves(job, result):
    for shown in (job, result):
        assert "llama3-8b" in repr(shown)
        assert "llama3-8b" in shown._repr_html_()
    assert "step time" in repr(result)
    path = repr(result.critical_path)
    assert "critical path of" in path and len(path) < 2000


def test_a_changed_job_is_another_one(job):
    wider = job.changed(parallel={"tp": 4}, training={"recompute": "full"})
    assert (wider.complete.parallel.tp, wider.complete.training.recompute) == (4, "full")
    assert wider.complete.training.seq == 4096  # what was said stays said
    assert job.complete.parallel.tp == 2
    cool = job.changed(settings={"gpu.conditions": "cool"})
    assert (cool.cluster.gpu.conditions, job.cluster.gpu.conditions) == ("cool", "sustained")


def test_what_is_said_last_counts():
    asked = simcore.describe("llama3-8b", cluster="h100-8", settings={"parallel.tp": 4, "gpu.clock": 0.9})
    assert asked.complete.parallel.tp == 4
    assert asked.changed(parallel={"tp": 2}).complete.parallel.tp == 2
    again = asked.changed(settings={"training.recompute": "full", "gpu.clock": 0.8})
    assert (again.complete.parallel.tp, again.complete.training.recompute) == (4, "full")
    assert again.scenario.settings.hardware["gpu.clock"] == "0.8"
    with pytest.raises(InputError, match=r"did you mean 'parallel.tp'"):
        asked.changed(settings={"tp": 2})


def test_a_launch_is_a_job_and_its_log_is_diagnosed(tmp_path, capsys):
    flags = (
        "--num-layers 4 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --bf16"
        " --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 16"
        " --padded-vocab-size 32000 --sequence-paralel"
    )
    job = simcore.load(megatron=flags, cluster="h100-8")
    assert job.complete.training.global_batch == 16
    assert any("did you mean '--sequence-parallel'" in line for line in job.warnings)
    assert "not understood" in repr(job)
    expected = simcore.simulate(job)
    log = tmp_path / "train.log"
    line = " iteration {}/ 9 | elapsed time per iteration (ms): {:.4f} | global batch size: 16 |"
    log.write_text("\n".join(line.format(n, 2e3 * expected.step_time_s) for n in range(1, 10)))
    found = simcore.diagnose(log, job)
    assert found.expected_s == pytest.approx(expected.step_time_s)
    assert (found.verdict, found.band) == ("slower", expected.band)
    assert found.gap_s == pytest.approx(expected.step_time_s, rel=1e-4)
    # A clock of some share explains it: the steps are of products and of memory's kernels.
    assert found.checks.gain_s.is_monotonic_decreasing and "clocks of all GPUs" in set(found.checks.name)
    assert len(found.causes) == 0  # a log alone does not say
    assert "OUTSIDE the band, slower" in repr(found)
    assert command("diagnose", log, "--from-megatron", flags, "--cluster", "h100-8", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert {**said, "asked": ""} == {**found.as_dict(), "asked": ""}
    with pytest.raises(InputError, match="which job ran"):
        simcore.diagnose(log)


def test_a_model_of_fields_and_its_file(tmp_path):
    mine = simcore.describe(SMALL, cluster="h100-8", software="megatron-core", training={"global_batch": 8})
    mine.to_yaml(tmp_path / "mine.yaml")
    again = simcore.load(tmp_path / "mine.yaml")
    assert simcore.simulate(again).step_time_s == simcore.simulate(mine).step_time_s


def test_what_is_wrong_is_said(job, tmp_path):
    with pytest.raises(InputError, match="did you mean 'llama3-70b'"):
        simcore.describe("llama3-7b")
    for wrong in ({"parallel": 3}, {"cluster": 8}):
        with pytest.raises(InputError, match=str(*wrong.values())):
            simcore.describe("llama3-8b", **wrong)
    with pytest.raises(InputError, match="not None"):
        simcore.describe(None)
    with pytest.raises(InputError, match="not 3"):
        simcore.simulate(3)
    with pytest.raises(InputError, match=r"a traced program.*--set parallel\.tp="):
        simcore.simulate(job, edits="tp=4")
    with pytest.raises(InputError, match=r"did you mean 'tp'"):
        simcore.describe("llama3-8b", parallel={"tpp": 2})
    with pytest.raises(InputError, match="unknown section 'trainning'; did you mean 'training'"):
        job.changed(trainning={"seq": 1})
    with pytest.raises(InputError, match="degrees and software are as traced"):
        simcore.load().changed(parallel={"tp": 4})
    with pytest.raises(InputError, match="no model, degrees or software are known"):
        _ = simcore.load().complete
    with pytest.raises(OutOfMemoryError, match="does not fit"):
        simcore.simulate(job.changed(settings={"gpu.hbm_bytes": "16GiB"}))
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = simcore.simulat
    with pytest.raises(InputError):
        simcore.open_run(tmp_path)


def test_edits_and_folders(job, tmp_path):
    edited = simcore.simulate(job, edits=["class.gemm.speed=2"], out=tmp_path / "run")
    (edit,) = edited.edits
    assert edit.after_s == edited.step_time_s < edit.before_s
    kept = edited.save(tmp_path / "copy")
    assert simcore.open_run(kept).step_time_s == edited.step_time_s
    with pytest.raises(InputError):
        edited.save(Path(__file__).parent)  # not ours to replace


def test_a_recording_replayed_and_edited(result, tmp_path):
    recording = simcore.replay(write_kineto(result.timeline, tmp_path / "t.json.gz", [0, 1]))
    assert abs(recording.steps.error).max() < 1e-3
    quicker = recording.edit("class.gemm.speed=2").edit("host.speed=2")
    assert [edit.called for edit in quicker.edits] == ["class.gemm.speed=2", "host.speed=2"]
    assert quicker.step_time_s < recording.step_time_s
    assert quicker.as_dict()["edits"][1]["step_time_after_s"] == pytest.approx(quicker.step_time_s)
    assert "recorded" in repr(quicker)
    with pytest.raises(InputError, match="unknown edit"):
        recording.edit("clas.gemm.speed=2")


def test_a_plan_and_its_best():
    found = simcore.plan(
        "llama3-8b", cluster="h100-8", global_batch=8, seq=4096, search="tp,micro_batch", polish=False
    )
    assert found.certificate["gap"] <= 0.02
    assert simcore.simulate(found.best).step_time_s == found.candidates.step_time_s[0]
    assert len(found.trials) == found.as_dict()["num_candidates"]
    assert "tp" in repr(found)


def test_import_is_cheap():
    program = (
        "import simcore, sys; print([m for m in ('numpy', 'pyarrow', 'simpy', 'torch') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, text=True
    )
    assert found.stdout.strip() == "[]"
