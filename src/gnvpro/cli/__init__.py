"""The command line: a thin shell with one function per command; errors are reported in one line."""

from gnvpro.extras import need

try:
    need("typer", "cli")
except ImportError as missing:
    raise SystemExit(f"the gnvpro command: {missing}") from missing

from gnvpro.cli import experiments, inspect, policy, surrogates, table
from gnvpro.cli import simulated_sets as data
from gnvpro.cli.app import app

__all__ = ["app", "data", "experiments", "inspect", "policy", "surrogates", "table"]
