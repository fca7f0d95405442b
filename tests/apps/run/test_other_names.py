"""What users of other programs type: each is told what it is called here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

CASES = {
    "cluster in capitals": (["GRAPH", "--cluster", "H100-8"], "did you mean 'h100-8'?"),
    "cluster as a product": (["GRAPH", "--cluster", "16xh100"], "did you mean 'h100-16'?"),
    "cluster as its GPU": (["GRAPH", "--cluster", "h100-sxm-8"], "a GPU; clusters of it: h100-8, h100-efa-8"),
    "name on the Hub": (["meta-llama/Llama-3-8B"], "give its config.json; did you mean 'llama3-8b'?"),
    "GPUs by number": (["llama3-8b", "--gpus", "64"], "--cluster h100-64"),
    "others' flag": (["llama3-8b", "--vpp", "2"], "parallel.virtual_stages=2"),
    "others' name": (["llama3-8b", "--set", "gbs=64"], "'gbs'; did you mean 'training.global_batch'?"),
    "others' key": (["llama3-8b", "--set", "parallel.vpp=2"], "did you mean 'parallel.virtual_stages'?"),
    "unit in small letters": (["GRAPH", "--set", "cluster.nic_bytes_per_s=25gb/s"], "'GB/s' or 'Gb/s'?"),
    "edit of a description": (["llama3-8b", "--cluster", "h100-8", "--edit", "tp=4"], "--set parallel.tp="),
    "an empty file": (["empty.yaml"], "is empty; a job is at least `model: "),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_meant_is_told(run: Callable[..., Result], graph_dir: Path, case: str) -> None:
    arguments, message = CASES[case]
    Path("empty.yaml").write_text("# nothing\n")
    result = run("run-sim", *(str(graph_dir) if word == "GRAPH" else word for word in arguments))
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
