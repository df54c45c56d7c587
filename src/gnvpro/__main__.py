"""`python -m gnvpro`: the command line."""

from gnvpro.cli import app

app(prog_name="gnvpro")
