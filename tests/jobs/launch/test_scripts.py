"""Launch scripts as people keep them: arguments, variables, scripts within scripts, other commands' texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.apps.plan.asking import asked
from simcore.errors import InputError
from workloads.jobs.launch import Launch, read_launch
from workloads.jobs.launch.shell.expand import calculated

MODEL = "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 1"


def written(folder: Path, text: str, name: str = "train.sh") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def read(given: str, gpus: int = 8, framework: str = "megatron") -> Launch:
    return read_launch(framework, given).on(gpus)


def test_a_script_is_given_what_a_shell_would_give_it(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        f"""SIZE=$1
        shift
        if [ -z ${{VP}} ]; then CHUNKS=""; else CHUNKS="--num-virtual-stages-per-pipeline-rank $VP"; fi
        SP=$(( ($TP > 1) ? 1 : 0 ))
        [ $SP -eq 1 ] && MORE="--sequence-parallel"
        if [ $SIZE = 7B ]; then LAYERS=32; elif [ $SIZE = 1B ]; then LAYERS=16; fi
        torchrun --nproc-per-node 8 --nnodes $1 pretrain_gpt.py {MODEL} --num-layers $LAYERS $CHUNKS \\
            --tensor-model-parallel-size $TP --pipeline-model-parallel-size 2
        """,
    )
    told = read_launch("megatron", f"TP=2 VP=4 bash {script} 7B 4")
    assert told.num_gpus == 32
    found = told.on(32).content
    assert found["model"]["layers"] == 32
    assert (found["parallel"]["tp"], found["parallel"]["virtual_stages"]) == (2, 4)
    without = read(f"TP=2 {script} 1B 1").content
    assert (without["model"]["layers"], without["parallel"]["virtual_stages"]) == (16, 1)
    with pytest.raises(InputError, match=r"has no value.*\$TP.*variables and arguments go with it"):
        read(script)


def test_scripts_within_scripts_are_read(tmp_path: Path) -> None:
    """What ``eval`` and ``bash -c`` run, what is sourced, what ``sbatch`` reads; other texts are not."""
    written(tmp_path, "export HIDDEN=2048\n", "config.sh")
    flags = MODEL.replace("1024", "$HIDDEN")
    head = '#   --not-this \\\nexport WHERE=`pwd`\n. $WHERE/config.sh\ncat <<EOT > ds.json\n{ "a": 1 }\nEOT\n'
    command = f"$WHERE/pretrain_gpt.py --load <your checkpoint> {flags}"
    for run in (
        f'CMD="python {command}"\necho ${{CMD}}\neval ${{CMD}} 2> err.log\n',
        f'CMD="{command} \\\n  --fp16"\nsrun --jobid 1 bash -c "python $CMD" 2>&1 | tee log.txt\n',
        f"sbatch -N 1 <<EOF\n#!/bin/bash\nsrun python {command}\nEOF\n",
    ):
        found = read(written(tmp_path, head + run))
        assert found.content["model"]["hidden"] == 2048, run
        assert found.not_understood == (), run
        assert any("read with it: source config.sh" in str(one) for one in found.assumed)
    # Only files of the script's own folder are read.
    other = written(tmp_path, "source /etc/passwd\nsource ../elsewhere.sh\npython pretrain_gpt.py " + MODEL)
    notes = [str(one) for one in read(other).assumed]
    assert sum("not read: source" in note for note in notes) == 2


def test_a_script_that_runs_itself_ends(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="scripts in each other"):
        read(written(tmp_path, "source train.sh\n"))
    twice = 'X=\'eval "$X"; eval "$X"\'\n' + "eval $X\n"
    with pytest.raises(InputError, match="too many in all"):
        read(written(tmp_path, twice))


def test_variables_fill_other_files_too(tmp_path: Path) -> None:
    names = {"--num-layers": "8", "--hidden-size": "1024", "--num-attention-heads": "16"}
    names |= {"--seq-length": "2048", "--micro-batch-size": "1", "--tensor-model-parallel-size": "${TP}"}
    text = "MODEL_ARGS:\n" + "".join(f"  {name}: {value}\n" for name, value in names.items())
    path = written(tmp_path, text, "model.yaml")
    assert read(f"TP=4 {path}").content["parallel"]["tp"] == 4
    with pytest.raises(InputError, match=r"\$\{TP\}"):
        read(path)


def test_a_job_has_the_gpus_that_its_degrees_need(tmp_path: Path) -> None:
    """NVIDIA's example starts one node of 8 with tp 8 x pp 16."""
    run = f"--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 {MODEL} --num-layers 16"
    path = written(tmp_path, f"torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py {run}\n")

    def question(cluster: str | None) -> int:
        ask = asked(
            None, cluster, [], launch=("megatron", path), global_batch=None, seq=None, framework=None, spare=0
        )
        return ask.question.cluster.num_gpus

    assert question(None) == 128
    with pytest.raises(InputError, match="does not divide 8 GPUs"):
        assert question("h100-8") and asked(None, "h100-8", [], launch=("megatron", path)).question.ground


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        ("--activations-checkpoint-method uniform", "training.recompute", "full"),
        ("--normalization rmsnorm", "model.norm", "rmsnorm"),
        ("--attention-head-type multiquery", "model.kv_heads", 1),
        ("--num-key-value-heads 4", "model.kv_heads", 4),
        ("--position-embedding-type alibi", "model.positions", "alibi"),
        ("--pad-vocab-size-to 250880", "model.vocab", 250880),
        ("--deepspeed --zero-stage 1", "training.sharding", "zero1"),
        ("--deepspeed", "software.preset", "megatron-deepspeed"),
        ("--num-experts 8 --moe-expert-parallel-size 4", "parallel.ep", 4),
    ],
)
def test_flags_of_kin_and_of_earlier_years(flags: str, key: str, value: object) -> None:
    found = read(f"{MODEL} {flags}")
    section, name = key.split(".")
    assert found.content[section][name] == value
    assert found.not_understood == ()


def test_programs_of_other_models_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, f"python pretrain_bert.py {MODEL}\n")
    with pytest.raises(InputError, match=r"pretrain_bert\.py trains models"):
        read(path)


def test_torchtitans_earlier_keys_are_todays(tmp_path: Path) -> None:
    text = """
    [model]
    name = "llama3"
    flavor = "8B"
    [training]
    batch_size = 2
    seq_len = 4096
    compile = true
    tensor_parallel_degree = 2
    """
    found = read(written(tmp_path, text, "old.toml"), framework="torchtitan")
    assert found.not_understood == ()
    assert found.content["parallel"]["tp"] == found.content["training"]["micro_batch"] == 2
    assert found.content["software"]["preset"] == "torchtitan-fsdp2"  # not its eager kin


@pytest.mark.parametrize(
    ("text", "value"),
    [("2+3*4", 14), ("(1 < 2) ? 5 : 6", 5), ("7 / 2 == 3", 1), ("-(3-5)", 2), ("1 ? 0 ? 1 : 2 : 3", 2)],
)
def test_whole_numbers_are_bashs(text: str, value: int) -> None:
    assert calculated(text) == value
