"""The parts of `make bench-interference`."""
