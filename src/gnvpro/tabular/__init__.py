"""A model from a table, without writing Python: what `gnvpro train` and `gnvpro predict` do."""
