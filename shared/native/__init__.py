"""C sources of ours: compiled once for this processor, loaded, or done without."""
