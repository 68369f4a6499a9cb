"""What the kernels cost: compiled for GPUs that are not here, and measured on one that is."""
