"""The command line as a whole: version, help, completion, and advice if a library is missing."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
from typer.testing import CliRunner

import gnvpro
from gnvpro.cli import app
from gnvpro.cli.app import one_line_errors


def test_the_version_is_told():
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0
    assert done.output.startswith(f"gnvpro {gnvpro.__version__} (torch ")


def test_every_command_has_help_and_so_has_every_option():
    for command in ([], ["train"], ["predict"], ["run"], ["report"], ["list"], ["data", "cdr"], ["data", "dcr"]):
        done = CliRunner().invoke(app, [*command, "--help"])
        assert done.exit_code == 0
        assert "Usage" in done.output


@pytest.mark.parametrize(
    ("line", "offered"), [("gnvpro re", "report"), ("gnvpro run poisson2", "poisson2d"), ("gnvpro run cd", "cdr")]
)
def test_a_shell_completes_commands_and_experiments(line, offered):
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_GNVPRO_COMPLETE": "complete_bash"}
    done = CliRunner().invoke(app, [], prog_name="gnvpro", env=words)
    assert offered in done.output.split()


def test_a_warning_takes_one_line_and_names_no_file(capsys):
    """A user of the command has no use for the line of ours that warned."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with one_line_errors():
            warnings.warn("the validation loss has turned up", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "gnvpro: warning: the validation loss has turned up\n"


def test_the_help_prints_a_whole_sentence_for_each_command():
    shown = CliRunner().invoke(app, ["--help"], terminal_width=80).output
    assert "..." not in shown.split("Commands:")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("--help", 0),
        ("train --help", 0),
        ("train missing.csv --target y", 1),
        ("predict missing.safetensors missing.csv", 1),
        ("inspect missing.pt missing.npy", 1),
        ("report missing", 1),
    ],
)
def test_help_and_wrong_file_names_are_answered_before_torch_is_imported(command, status):
    """Importing torch takes seconds."""
    script = [sys.executable, "-X", "importtime", "-m", "gnvpro", *command.split()]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == status
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "gnvpro.cli" in imported
    assert not {"torch", "numpy", "pandas"} & imported


@pytest.mark.slow
def test_a_missing_typer_is_asked_for_in_one_line():
    script = "import sys; sys.modules['typer'] = None\nimport gnvpro.cli"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'rich>=" in done.stderr
    assert "Traceback" not in done.stderr
