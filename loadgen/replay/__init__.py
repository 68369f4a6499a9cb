"""A live scheduler's event log played again: the same decisions, or those of another policy."""
