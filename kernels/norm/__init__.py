"""RMSNorm, alone and after adding a residual."""
