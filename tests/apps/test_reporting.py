"""How commands end: one message, whatever goes wrong and whenever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

from simcore.apps.child import run_python
from simcore.apps.errors import as_app
from simcore.apps.main import app
from simcore.apps.output import print_wide
from workloads.tracing.drive import cli as tracing

ROOT = Path(__file__).resolve().parents[2]


def _commands(of: Any) -> Iterator[Any]:
    for command in of.commands.values():
        yield from _commands(command) if hasattr(command, "commands") else (command,)


def test_one_reporter_is_around_every_command() -> None:
    found = [
        *_commands(typer.main.get_command(app)),
        *_commands(typer.main.get_command(as_app(tracing.app))),
    ]
    assert len(found) > 15
    assert all(hasattr(command.callback, "reports_errors") for command in found)


def _run(code: str) -> tuple[int, str]:
    """Exit code and stderr of a command that is ``code``, as a script of ours runs it."""
    program = (
        "import sys, types\nmodule = types.ModuleType('given')\nsys.modules['given'] = module\n"
        f"def command():\n    {code}\n"
        "module.command = command\nfrom simcore.apps.process import alone\nalone('given:command')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("code", "limits", "exit_code", "said"),
    [
        ("held = bytearray(3 << 30)", "memory=2GiB", 2, "error: needs more than 2 GiB of memory, the limit"),
        ("import numpy; numpy.ones(1 << 29)", "memory=2GiB", 2, "error: needs more than 2 GiB of memory"),
        ("import time; time.sleep(30)", "seconds=1", 2, "error: not done after 1 s, the limit"),
        ("pass", "memori=2GiB", 2, "error: SIMCORE_LIMITS: unknown limit 'memori'; did you mean 'memory'?"),
        ("raise OSError('a\\x1b[31mb')", "", 2, "error: a\\x1b[31mb"),
        ("raise OSError('x' * 10**6)", "", 2, "x ... x"),
        ("print('\\ud800')", "", 0, ""),
        ("[].pop()", "", 1, "This is a bug of the simulator"),
        ("import typer; raise typer.Exit(4)", "", 4, ""),
    ],
)
def test_what_goes_wrong_is_one_message(
    monkeypatch: pytest.MonkeyPatch, code: str, limits: str, exit_code: int, said: str
) -> None:
    monkeypatch.setenv("SIMCORE_LIMITS", limits)
    ended, stderr = _run(code)
    assert ended == exit_code
    assert said in stderr
    assert len(stderr) < 3000
    assert exit_code == 1 or "Traceback" not in stderr


@pytest.mark.parametrize("command", ["run_sim", "validate", "report", "replay"])
def test_help_into_a_full_disk_is_one_message(command: str) -> None:
    with Path("/dev/full").open("wb") as full:
        script = ROOT / "scripts" / f"{command}.py"
        done = subprocess.run(
            [sys.executable, script, "--help"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 2
    assert done.stderr.decode().count("\n") == 1


def test_an_interrupt_at_any_time_is_no_traceback_of_ours(tmp_path: Path) -> None:
    for command in ("run_sim", "validate"):
        for after_s in (0.03, 0.06, 0.1, 0.2, 0.4):
            script = ROOT / "scripts" / f"{command}.py"
            process = subprocess.Popen(
                [sys.executable, script, *([] if command == "run_sim" else ["x"])],
                cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                # Where tests run in the background, a shell has them ignore interrupts.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )  # fmt: skip
            time.sleep(after_s)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate()
            assert process.returncode != 0
            assert "simcore" not in stderr  # Python's own start may show one
            assert "scripts" not in stderr
    assert list(tmp_path.rglob("*.partial*")) == []


def test_names_from_files_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("kernel")
    table.add_row("gemm [with T = float] [/bold] [red]x[/] :smile: \x1b[31m")
    print_wide(table)
    printed = capsys.readouterr().out
    assert "gemm [with T = float] [/bold] [red]x[/] :smile: [31m" in printed


def test_a_command_called_from_python_raises(tmp_path: Path) -> None:
    from simcore.apps.run.finished import compare
    from simcore.errors import InputError

    with pytest.raises(InputError, match="is not a run folder"):
        compare(tmp_path, tmp_path)
    assert CliRunner().invoke(app, ["compare", str(tmp_path), str(tmp_path)]).exit_code == 2


def test_a_child_that_fails_ends_the_command_as_it_ended() -> None:
    done = CliRunner().invoke(as_app(lambda: run_python(["-c", "raise SystemExit(3)"])), [])
    assert (done.exit_code, done.output) == (3, "")
