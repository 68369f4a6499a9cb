"""Baton's engine beside its peers on the same machine."""
