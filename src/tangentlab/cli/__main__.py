"""`python -m tangentlab.cli`."""

from tangentlab.cli import app

app()
