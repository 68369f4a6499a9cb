"""The engine's side of the benches, for processes of their own: what needs torch."""
