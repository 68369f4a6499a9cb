"""The five cores on one event heap: a cluster in a single thread, in bad weather, from one seed.

Sees cores and shared code only; no shell, no event loop, no clock of the machine.
"""
