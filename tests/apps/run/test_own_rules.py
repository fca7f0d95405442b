"""``--rules``: the examples as they stand, what is told of them, and which answer a folder holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import simcore
from simcore.apps.main import app
from simcore.graph import GraphBuilder, save_graph
from simcore.rules import rule

EXAMPLES = Path(__file__).parents[3] / "examples/rules"
_SMALL = """
model: {layers: 4, hidden: 1024, heads: 8, ffn: 4096, vocab: 4096%s}
cluster: h100-16
parallel: {%s}
training: {seq: 1024, micro_batch: 1, global_batch: 16}
software: {preset: %s}
"""


def asked(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["run-sim", *words, "--no-perfetto", "--no-report", "--json", "--force"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def both(folder: Path, yaml: str, example: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a job answers without the rules of an example and with them."""
    job = folder / "job.yaml"
    job.write_text(yaml)
    words = [str(job), "--out", str(folder / "run")]
    return asked(*words), asked(*words, "--rules", str(EXAMPLES / example))


def test_the_optimizer_runs_beside_the_backward(tmp_path: Path) -> None:
    plain, ruled = both(tmp_path, _SMALL % ("", "", "torchtitan-fsdp2"), "overlapped_optimizer.py")
    assert ruled["step_time_s"] < plain["step_time_s"]
    assert ruled["band"]["reasons"][-1].startswith("the band does not cover rules:")
    put_in, removed = ruled["rules"][0]["matched"]
    # A reduction of each of 4 layers and of what is around them, on 16 ranks.
    assert put_in["executions"] == 5 * 16
    assert "multi_tensor_l2norm" in removed["names"]


def test_experts_are_exchanged_by_the_user_s_kernel(tmp_path: Path) -> None:
    moe = ", moe: {num_experts: 16, top_k: 2, ffn: 1024}"
    plain, ruled = both(tmp_path, _SMALL % (moe, "ep: 16", "megatron-core"), "own_all_to_all.py")
    (matched,) = ruled["rules"][0]["matched"]
    # Of each layer: there and back, forward and backward.
    assert matched["executions"] == 4 * 4 * 16
    assert ruled["step_time_s"] != plain["step_time_s"]


def test_a_library_s_messages_order_the_stages_of_a_program(tmp_path: Path) -> None:
    """As `pipeline.py` beside the rules is traced: GPipe, its puts and gets without a meaning."""
    build, world, microbatches = GraphBuilder(4, name="pipeline", dims={"dp": 4}, num_microbatches=8), 4, 8
    columns: dict[str, Any] = {
        "op_class": "copy",
        "recorded_ps": 0,
        "bytes_read": 1 << 20,
        "bytes_written": 1 << 20,
    }
    for rank in range(world):
        forward, backward = build.template("fwd"), build.template("bwd")
        for template, comes, goes in (
            (forward, rank > 0, rank < world - 1),
            (backward, rank < world - 1, rank > 0),
        ):
            if comes:
                template.compute("ring::get", **columns)
            template.compute("work", recorded_ps=2_000_000_000)
            if goes:
                template.compute("ring::put", **columns)
        passes = [(one, microbatch, 0) for one in (forward, backward) for microbatch in range(microbatches)]
        build.program([rank], passes)
    graph = tmp_path / "graph"
    save_graph(build.build(), graph)
    words = [
        str(graph),
        "--cluster",
        "h100-8",
        "--set",
        "workload.kernels=unfused",
        "--out",
        str(tmp_path / "run"),
    ]
    plain, ruled = asked(*words), asked(*words, "--rules", str(EXAMPLES / "own_p2p.py"))
    # GPipe of 4 stages and 8 microbatches: (8 + 3) / 8 of the time, and a little for the messages.
    assert ruled["step_time_s"] / plain["step_time_s"] == pytest.approx(11 / 8, rel=0.01)


def test_rules_are_part_of_the_question(tmp_path: Path) -> None:
    job, mine = tmp_path / "job.yaml", tmp_path / "mine.py"
    job.write_text(_SMALL % ("", "", "torchtitan-fsdp2"))
    mine.write_text(
        'from simcore.rules import rule\n@rule("slow")\ndef slow(g): g.ops(kind="compute").takes(us=90)\n'
    )
    words = ["run-sim", str(job), "--no-perfetto", "--no-report", "--out", str(tmp_path / "run")]
    runner = CliRunner()
    assert runner.invoke(app, words).exit_code == 0
    again = runner.invoke(app, [*words, "--rules", str(mine)])
    assert again.exit_code == 2
    assert "answers another question" in again.output
    done = runner.invoke(app, [*words, "--rules", str(mine), "--force"])
    assert "rule: slow" in done.output
    assert "90 us each" in " ".join(done.output.split())


def test_rules_in_python(tmp_path: Path) -> None:
    job = simcore.describe("llama3-8b", cluster="h100-8", training={"seq": 1024, "global_batch": 8})

    @rule("attention is twice as fast")
    def fast(graph: Any) -> None:
        graph.ops(op_class=("attention_fwd", "attention_bwd")).faster(2)

    plain, ruled = simcore.simulate(job), simcore.simulate(job, rules=fast)
    assert ruled.step_time_s < plain.step_time_s
    assert ruled.as_dict()["rules"][0]["says"] == "attention is twice as fast"
    assert ruled.report(tmp_path / "out.html").stat().st_size > 10_000
