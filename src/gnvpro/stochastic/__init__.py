"""Stochastic variable projection: the head is eliminated on each batch."""
