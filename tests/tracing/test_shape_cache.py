"""Shapes that are looked up, and frameworks that are imported once."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.framework_imports import AfterImport, after_import, leading_imports


def test_looked_up_results_are_those_of_torch(pool: WorkerPool) -> None:
    from tests.tracing import shape_programs

    plain, rounds = pool.submit(shape_programs.both).result()
    assert plain["shares_storage"]["viewed"] and not plain["shares_storage"]["dense"]
    for found in rounds:
        assert found == plain


def test_imports_up_to_the_first_statement_that_does_something(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        '"""A script."""\nfrom __future__ import annotations\nimport os, deepspeed\n'
        "from transformers import GPT2Config, GPT2LMHeadModel\nimport wandb\n"
        'os.environ["DS_ACCELERATOR"] = "cuda"\nimport peft\n'
    )
    assert leading_imports(script) == (
        ("deepspeed", ()),
        ("transformers", ("GPT2Config", "GPT2LMHeadModel")),
    )
    # As Megatron-LM's pretrain_gpt.py begins: with a clock, the rank, and what is said of warnings.
    script.write_text(
        "import time\n_START = time.time()\nimport os, warnings\nrank = int(os.environ.get('RANK', 0))\n"
        "if rank != 0:\n    warnings.filterwarnings('ignore')\n    def quiet(message, file=None): return\n"
        "    warnings.showwarning = quiet\nfrom megatron.core import mpu\n"
    )
    assert leading_imports(script) == (("megatron.core", ("mpu",)),)
    for first in (
        "if rank != 0:\n    os.environ['DS_ACCELERATOR'] = 'cuda'",  # later imports ask for it
        "started = launch()",
        "def f(x=launch()): return",
        "@launch\ndef f(): return",
        "torch.backends.cudnn.enabled = False",
        "import torch\nif torch.cuda.is_available():\n    x = 1",
        "if rank:\n    import apex",
    ):
        script.write_text(f"{first}\nimport deepspeed\n")
        assert leading_imports(script) == (), first
    script.write_text("def broken(:\n")
    assert leading_imports(script) == ()


def test_a_module_is_acted_on_once_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_framework.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen: list[int] = []

    def act(module: ModuleType) -> None:
        seen.append(module.value)

    after_import({"some_framework": act, "absent_framework": act})
    assert seen == [] and isinstance(sys.meta_path[0], AfterImport)
    importlib.import_module("some_framework")

    assert seen == [1]
    after_import({"some_framework": act})  # imported already: at once
    assert seen == [1, 1]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("absent_framework")
    monkeypatch.delitem(sys.modules, "some_framework")
