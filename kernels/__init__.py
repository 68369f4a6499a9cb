"""Triton attention kernels, each beside its reference. Imports nothing of the rest of Baton."""
