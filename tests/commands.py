"""The console script, called in this process."""

from __future__ import annotations

import sys

from typer.testing import CliRunner

from simcore.apps.main import app


def simcore(*arguments: object) -> int:
    """Exit code of a command; what it prints is printed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    return result.exit_code
