"""Commands in this process: how they ended, and what they said."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout

from typer.main import get_command

from simcore.apps.main import app
from simcore.errors import InputError
from tests.fuzz.cases import Answer

_COMMAND = get_command(app)
_FRAME = re.compile(r'File "[^"]*?/((?:simcore|workloads)/[^"]+)", line (\d+), in (\S+)')
_ERROR = re.compile(r"^error: |^.{0,3}Error", re.M)


class UnexpectedEndError(Exception):
    """A command ended as none should; ``where``: the innermost line of ours in what it said."""

    def __init__(self, said: str) -> None:
        """Of what the command said on stderr."""
        super().__init__(said)
        frames = _FRAME.findall(said)
        lines = [
            line for line in said.splitlines() if re.match(r"\w+(\.\w+)*(Error|Warning|Exception)\b", line)
        ]
        kind = lines[-1].partition(":")[0] if lines else ""
        self.where = f"{kind} {frames[-1][0]}:{frames[-1][1]} {frames[-1][2]}" if frames else said[:60]


def commanded(*words: object) -> Answer:
    """What ``simcore WORDS`` answers.

    Errors: InputError with what it said where it ended with 2 or 3 and one message, else UnexpectedEndError.
    """
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            _COMMAND.main([str(word) for word in words], prog_name="simcore")
        except SystemExit as end:
            code = end.code
    said, shown = err.getvalue(), out.getvalue()
    if not said and "Usage:" in shown:  # help, where a command of several is missing
        said = shown
    if code in (2, 3):
        if len(_ERROR.findall(said)) > 1 or "Traceback" in said:
            raise UnexpectedEndError(said)
        raise InputError(said)
    if code not in (0, None):
        raise UnexpectedEndError(f"exit code {code}: {said}")
    if not shown.startswith("{"):
        return Answer(None, said)
    found = json.loads(shown)
    seconds = found.get("step_time_s")
    return Answer(min(seconds) if isinstance(seconds, list) else seconds, [found, said])
