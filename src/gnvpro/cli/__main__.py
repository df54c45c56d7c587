"""`python -m gnvpro.cli`."""

from gnvpro.cli import app

app()
