"""What a run leaves: rows, figures, verdicts, files, comparisons."""
