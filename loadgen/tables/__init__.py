"""Published figures beside simulated ones: a claim per file section, each with inputs and gaps."""
