"""The operations of a link in C: what every page would otherwise cost in Python."""
