"""Names out of tables are shown as they are, but for what a terminal would obey."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.outside import printable
from tests.apps.validate.test_layers import write
from tests.commands import simcore

NAME = "sequence [with T = float] [/red] \x1b[31m \u202e"


def test_names_of_a_table_are_no_commands_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(write(tmp_path / "layers.csv"))
    path.write_text(path.read_text().replace("sequence parallelism", NAME))
    assert simcore("validate", "--layers", path) == 0
    shown = capsys.readouterr().out
    assert "sequence [with T = float] [/red] \\x1b[31m \\u202e" in shown
    assert "\x1b" not in shown


def test_lines_and_tabs_stay() -> None:
    assert printable("a\tb\nc\x07\u2069") == "a\tb\nc\\x07\\u2069"
