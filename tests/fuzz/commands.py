"""Formats of what is typed: words after a command's name, most of them right."""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from random import Random
from unittest import mock

from simcore.errors import InputError
from tests.fuzz.cases import Answer, Case, Format, register
from tests.fuzz.described import JOB
from tests.fuzz.ended import commanded
from tests.fuzz.mutate import NUMBERS, TEXTS, as_yaml, misspelt
from tests.fuzz.recordings import kineto
from tests.fuzz.stored import measured_gpu, runs, tables

#: Right words by command; GIVEN is the folder of the case's files.  What is after "|" may be left out.
_RIGHT = (
    "run-sim GIVEN/job.yaml --out out --json | --network alphabeta --seed 3 --set gpu.clock=0.9 --no-fold",
    "run-sim GIVEN/job.yaml --out out | --interference learned --edit host.speed=2 --cluster h100-8",
    "run-sim GIVEN/job.yaml --show-schedule | --json --set training.global_batch=4",
    "run-sim GIVEN/job.yaml --steady-state --out out | --json",
    "report GIVEN/run | --ranks 0,1 --top 3 --json --critical-path --host --perfetto out",
    "report GIVEN/run --kineto out | --ranks 0-1",
    "compare GIVEN/run GIVEN/run | --top 3 --json",
    "replay GIVEN/t.json --json | --step 1 --gaps typical --level recorded --edit host.speed=2 --explain",
    "replay GIVEN/t.json | --json --sm-series",
    "replay GIVEN/t.json --out out | --skip-bad --level shapes --interference shared --cluster h100-8",
    "trace-workload GIVEN/t.py --world-size 4 --out out | --steps 0:1 --gpus-per-node 2 --value t.py:3=0.5"
    " --expert-load zipf:1.2 --setup GIVEN/t.py --tokens-per-step 9 --max-ranks 4 --hang-s 5 --jobs 1",
    "trace-workload megatron-gpt --layers 4 --hidden 64 --heads 4 --out out | --seq 64 --vocab 512 --tp 2"
    " --pp 2 --dp 2 --microbatches 4 --precision bf16 --virtual-pipeline 2 --cp 2 --num-experts 4 --ep 2"
    " --recompute none --sequence-parallel --distributed-optimizer --first-stage-layers 1 --jobs 1",
    "trace-workload torchtitan --world-size 4 --out out | --model llama3 --jobs 2",
    "profile-gpu --fit-only gpu | --base a100-80 --minutes 3 --json --out out",
    "export-chakra GIVEN/nothing --out out | --ranks 0-1 --json",
    "sweep GIVEN/s.yaml --out out --merge GIVEN/none.jsonl | --shard 1/2 --json --case-limit 9 --retry"
    " --workers 1",
    "validate --kernels GIVEN/k.csv --json | --worst 3 --leave-one-out",
    "validate --traces GIVEN/t.json | --json",
    "validate --runs GIVEN/r.csv --show cp1 | --case 1",
    "calibrate GIVEN/k.csv hopper | --only gemm --leave-one-out",
    "contention-study GIVEN/t.json | --cluster h100-8",
    "bench nothing | --json",
    "fidelity-study --cases nothing",
    "bandwidth-study --nothing",
)  # fmt: skip
#: Commands that may take minutes when all is well: a word that none of them knows goes along.
_LONG = ("calibrate", "contention-study", "bench", "fidelity-study", "bandwidth-study")
_PLACES = (
    "out",
    "GIVEN",
    "GIVEN/job.yaml",
    ".",
    "/dev/null",
    "",
    "out/in",
    "x" * 300,
    "/dev/full",
    "GIVEN/run",
    "/proc/x",
)


#: What measures, or runs programs, for minutes: nothing is, once all that was said is understood.
_STARTED = ("workloads.tracing.drive.cli.trace", "simcore.apps.fit.profile.command._measure")


@cache
def _files() -> dict[str, bytes]:
    found = {f"run/{name}": data for name, data in runs()[0].items()}
    found |= {f"gpu/{name}": data for name, data in measured_gpu().items()} | {"t.py": b"import torch\n"}
    found |= {"job.yaml": as_yaml({**JOB, "cluster": "h100-8"}).encode(), "t.json": kineto()[0]["t.json"]}
    found |= {"s.yaml": as_yaml({**JOB, "grid": {"seed": [1, 2]}}).encode(), "none.jsonl": b""}
    return found | {"k.csv": tables()["kernels"], "r.csv": tables()["runs"]}


def _case(rng: Random) -> Case:
    right, _, more = rng.choice(_RIGHT).partition(" | ")
    words, options = right.split(), more.split()
    starts = [at for at, word in enumerate(options) if word.startswith("--")]
    for at, until in zip(starts, [*starts[1:], len(options)], strict=False):
        if rng.random() < 0.4:
            words += options[at:until]
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        at, what = rng.randrange(1, len(words)) if len(words) > 1 else 0, rng.randrange(9)
        if what == 0:
            del words[at]
        elif what == 1:
            words[at] = misspelt(words[at], rng)
        elif what == 2:
            words.insert(at, words[at])
        elif what == 3:
            words[at] = str(rng.choice(NUMBERS))
        elif what < 6:
            words[at] = rng.choice(TEXTS)
        elif what < 8:
            words[at] = rng.choice(_PLACES)
        else:
            words.insert(at, rng.choice(("--json", "--help", "--out", "--nonsense", "--", "-x")))
    begun = words[0] if words else ""
    if begun in _LONG or (begun == "run-sim" and not any("GIVEN" in word for word in words)):
        words.insert(rng.randrange(1, len(words) + 1), "--none-of-these")
    for at, word in enumerate(words[:-1]):
        if word in ("--perfetto", "--kineto", "--out") and (
            "GIVEN" in words[at + 1] or ".." in words[at + 1]
        ):
            words[at + 1] = "out"  # what a user names for an export is theirs to overwrite
    typed = [word.replace("\0", "").replace("\ud800", "\udcff") for word in words]  # what a shell can pass
    return Case("command", _files(), tuple(typed))


def _door(given: Path, case: Case) -> Answer:
    sys.stdin = None  # type: ignore[assignment]
    if "gpu" in case.words:  # a profile is written there
        shutil.copytree(given / "gpu", "gpu")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, "gpu", ignore_errors=True)
        for name in _STARTED:
            stack.enter_context(mock.patch(name, side_effect=InputError("would be started")))
        answer = commanded(*(word.replace("GIVEN", str(given)) for word in case.words))
    return Answer(answer.seconds, answer.said)


register([Format("command", _case, _door, writes=("",))])
