"""``diagnose``: logs as frameworks write them, recordings of steps, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import simcore
from simcore.apps.interface import JobOnCluster
from simcore.apps.main import app
from simcore.apps.run.scenario import resolve_scenario
from simcore.report import write_kineto
from workloads.imports.logs.training import training_log

MEGATRON = (
    " [2026-05-01 12:00:00] iteration {n:8d}/     100 | consumed samples: 32 |"
    " elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |"
    " learning rate: 1.0E-05 | global batch size:    32 | lm loss: 1.0E+01 | number of nan iterations:   0 |"
)
#: A small job, as Megatron-LM lists its arguments.
ARGUMENTS = {
    "add_bias_linear": "False", "attention_backend": "AttnBackend.auto", "bf16": "True",
    "cp_comm_type": "['p2p']",
    "encoder_num_layers": "2", "ffn_hidden_size": "14336", "fp8": "None", "global_batch_size": "32",
    "group_query_attention": "True", "hidden_dropout": "0.0", "attention_dropout": "0.0",
    "hidden_size": "4096",
    "kv_channels": "128", "max_position_embeddings": "4096", "micro_batch_size": "1", "moe_router_topk": "2",
    "normalization": "RMSNorm", "num_attention_heads": "32", "num_experts": "None", "num_layers": "2",
    "num_query_groups": "8", "overlap_grad_reduce": "False", "position_embedding_type": "rope",
    "seq_length": "4096", "sequence_parallel": "True", "swiglu": "True", "tensor_model_parallel_size": "2",
    "untie_embeddings_and_output_weights": "True", "use_distributed_optimizer": "True", "vocab_size": "None",
    "world_size": "8", "moe_shared_expert_overlap": "False",
}  # fmt: skip
FLAGS = (
    "--num-layers 2 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32"
    " --group-query-attention --num-query-groups 8 --kv-channels 128 --swiglu --normalization RMSNorm"
    " --disable-bias-linear --hidden-dropout 0 --attention-dropout 0 --position-embedding-type rope"
    " --max-position-embeddings 4096 --padded-vocab-size 32000 --untie-embeddings-and-output-weights"
    " --tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 --global-batch-size 32"
    " --seq-length 4096 --bf16 --use-distributed-optimizer"
)


def megatron_log(folder: Path, step_s: float, tflops: float = 300.0, more: str = "") -> Path:
    """Ten iterations of ``step_s``, the first ten times as long, with the launch's arguments."""
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in ARGUMENTS.items()]
    lines += ["-------------------- end of arguments ---------------------"]
    lines += [" > padded vocab (size: 31990) with 10 dummy tokens (new size: 32000)"]
    for n in range(1, 11):
        ms = step_s * 1e3 * (10 if n == 1 else 1)
        lines.append(MEGATRON.format(n=n, ms=ms, tflops=tflops))
    path = folder / "train.log"
    path.write_text("\n".join([*lines, more]))
    return path


def said(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["diagnose", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


def told(*words: object) -> dict[str, Any]:
    return json.loads(said(*words, "--json"))


@pytest.fixture(scope="module")
def job() -> JobOnCluster:
    """The job of the flags, as ``run_sim.py --from-megatron`` asks about it."""
    return JobOnCluster(resolve_scenario(None, cluster="h100-8", settings={}, launch=("megatron", FLAGS)))


@pytest.fixture(scope="module")
def expected(job: JobOnCluster) -> simcore.SimulatedRun:
    return simcore.simulate(job)


def test_logs_of_frameworks_say_how_long_steps_take() -> None:
    titan = "\x1b[32m[titan] 2026-02-24 - root - INFO - step: {} loss: 7.6 memory: 66.50GiB(37.51%)  tps: {}"
    # Two ranks print each step; of 4 steps the first is left out, of the others the median is 10,000.
    text = "\n".join(
        titan.format(n, rate) + "  tflops: 314.7  mfu: 14%"
        for n, rate in ((1, "1,000"), (2, "9,900"), (3, "10,000"), (4, "10,100"))
        for _ in range(2)
    )
    log = training_log(text, "log")
    assert (log.framework, len(log.steps), log.typical("tokens_per_s")) == ("torchtitan", 4, 10_000)
    assert log.memory["reserved"] == int(66.5 * 2**30)

    text = "\n".join(
        f"[INFO] [timer.py:258:stop] epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=16.1,"
        " CurrSamplesPerSec=16.8, MemAllocated=0.02GB, MaxMemAllocated=9.5GB"
        for n in (10, 20)
    )
    log = training_log(text, "log")
    assert (log.framework, log.typical("samples_per_s")) == ("deepspeed", 16.8)
    assert log.memory["allocated"] == int(9.5 * 2**30)

    end = "{'train_runtime': '211', 'train_samples_per_second': '0.948', 'train_steps_per_second': '0.25'}"
    assert training_log(end, "log").typical("step_s") == 4.0
    # A progress bar rewrites its line; below a second a step it counts the other way round.
    bar = "  5%|#  | 25/500 [01:30<28:30,  3.60s/it]\r  5%|#  | 26/500 [01:34<28:30,  3.60s/it]"
    assert training_log(bar, "log").typical("step_s") == 3.6
    assert training_log(" 50%|#| 250/500 [01:30<01:30,  2.00it/s]", "log").typical("step_s") == 0.5

    nemo = "Training epoch 0, iteration 5/9 | lr: 1e-4 | global_step: 5 | train_step_timing in s: 2.345"
    assert training_log(nemo, "log").typical("step_s") == 2.345
    with pytest.raises(simcore.errors.InputError, match="no line of a training log that is known"):
        training_log("hello\nworld", "log")


def test_timers_and_memory_of_megatron() -> None:
    text = "\n".join((
        MEGATRON.format(n=1, ms=1000, tflops=300),
        "    batch-generator ................................: (10.00, 250.00)",
        "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3.0 |"
        " max reserved: 4096.0",
    ))  # fmt: skip
    log = training_log(text, "log")
    assert log.timers == {"batch-generator": (0.01, 0.25)}
    assert log.memory == {"reserved": 4 << 30, "allocated": 2 << 20}


def test_the_launch_that_a_log_tells_is_the_one_of_its_flags(tmp_path: Path) -> None:
    from workloads.jobs.launch import read_launch

    of_log, of_flags = (
        read_launch("megatron", given).on(8).content for given in (str(megatron_log(tmp_path, 1.0)), FLAGS)
    )
    assert {**of_log, "model": {**of_log["model"], "name": ""}} == {
        **of_flags, "model": {**of_flags["model"], "name": ""}
    }  # fmt: skip


def test_the_launch_that_torchtitan_tells() -> None:
    from workloads.jobs.launch.files import DIALECTS
    from workloads.jobs.launch.logged import logged_launch

    content = {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"seq_len": 8192, "local_batch_size": 2},
    }
    text = f"[titan] - INFO - Running with configs: {json.dumps(content, indent=2)}\n[titan] INFO step: 1"
    found = logged_launch(DIALECTS["torchtitan"], text, "log")
    assert found is not None and found[0]["training.local_batch_size"] == ("2",)
    with pytest.raises(simcore.errors.InputError, match="truncated"):
        logged_launch(DIALECTS["torchtitan"], text[:80], "log")


def test_a_run_as_fast_as_expected_is_inside(tmp_path: Path, expected: simcore.SimulatedRun) -> None:
    tflops = expected.info.flops.model / expected.step_time_s / 8 / 1e12
    found = told(megatron_log(tmp_path, expected.step_time_s, tflops), "--no-checks")
    # The log's launch, completed by the same rules, is the job that was simulated.
    assert found["expected_s"] == pytest.approx(expected.step_time_s, rel=1e-9)
    assert found["verdict"] == "inside" and abs(found["gap_s"]) < 1e-3
    assert found["doubts"] == []


def test_a_slow_run_is_outside_and_checks_are_ordered_by_gain(
    tmp_path: Path, job: JobOnCluster, expected: simcore.SimulatedRun
) -> None:
    timer = "    batch-generator ................................: (10.00, 250.00)"
    step_s = 1.5 * expected.step_time_s
    found = told(megatron_log(tmp_path, step_s, more=timer))
    assert found["verdict"] == "slower" and found["gap_s"] == pytest.approx(step_s / 3, rel=1e-3)
    gains = [check["gain_s"] for check in found["checks"]]
    assert gains == sorted(gains, reverse=True)
    by_name = {check["name"]: check for check in found["checks"]}
    assert by_name["batch-generator"]["gain_s"] == 0.25
    # Choices that the launch leaves out are simulated: what they gain is what the job with them takes less.
    assert by_name["tensor-parallel communication beside products"]["certain"]
    better = simcore.simulate(job.changed(training={"tp_overlap": True})).step_time_s
    gain = by_name["tensor-parallel communication beside products"]["gain_s"]
    assert gain == pytest.approx(expected.step_time_s - better, rel=1e-6)
    # A clock that explains the gap: a job at that clock takes as long as was measured.
    clock = by_name["clocks of all GPUs"]
    share = float(clock["advice"].split("%")[0].split()[-1]) / 100
    slowed = simcore.simulate(job.changed(settings={"gpu.clock": share})).step_time_s
    assert slowed == pytest.approx(step_s, rel=0.02)


def test_terminal_text_fits_80_columns(tmp_path: Path, expected: simcore.SimulatedRun) -> None:
    text = said(megatron_log(tmp_path, 1.5 * expected.step_time_s, tflops=3.0))
    assert max(map(len, text.splitlines())) <= 80
    assert "OUTSIDE the band, slower" in text
    assert "warning: the log counts" in text  # a hundredth of the job's flops


def test_causes_of_a_recording_add_up_and_are_the_ones(tmp_path: Path, job: JobOnCluster) -> None:
    slow = job.changed(settings={"gpu.clock": 0.7})
    run = simcore.simulate(slow, out=tmp_path / "slow")
    write_kineto(run.timeline, tmp_path / "trace.json.gz", [0, 1])
    found = told(
        *sorted(tmp_path.glob("trace*.json.gz")), "--from-megatron", FLAGS, "--cluster", "h100-8",
        "--no-checks",
    )  # fmt: skip
    assert sum(cause["extra_s"] for cause in found["causes"]) == pytest.approx(found["gap_s"], abs=1e-9)
    extra = {cause["name"]: cause["extra_s"] for cause in found["causes"]}
    assert found["doubts"] == []
    other = told(
        *sorted(tmp_path.glob("trace*.json.gz")), "--job", "gpt2-small", "--cluster", "h100-8", "--no-checks"
    )
    assert "is it the same model" in other["doubts"][0]
    # Products slow down by up to 1/0.7, what memory bounds does not: nearly all of the gap is theirs.
    products = sum(value for name, value in extra.items() if "clock" in name or "products" in name)
    assert products > 0.8 * found["gap_s"] > 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--job", "llama3-8b", "--cluster", "h100-8"], "global batch of 32"),
        (["--cluster", "h100-8", "--set", "training.global_batch=64"], "--set training.global_batch=32"),
    ],
)
def test_logs_of_another_job_are_refused(tmp_path: Path, words: list[str], why: str) -> None:
    assert why in said(megatron_log(tmp_path, 1.0), *words, code=2)


def test_what_ran_must_be_known(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("{'train_runtime': 211, 'train_steps_per_second': 0.25}")
    assert "which job ran?" in said(log, code=2)
    assert "no such file" in said(tmp_path / "nothing.log", code=2)
