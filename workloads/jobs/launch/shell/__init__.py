"""Launch scripts, read and not run: the command that they come to, and its flags."""

from workloads.jobs.launch.shell.command import (
    is_script,
    launched,
    plain_words,
    program_of,
    split_flags,
)
from workloads.jobs.launch.shell.script import read_script

__all__ = ["is_script", "launched", "plain_words", "program_of", "read_script", "split_flags"]
