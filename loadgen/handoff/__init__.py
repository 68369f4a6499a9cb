"""The parts of the handoff bench: raw transfers, both kinds of cluster, the pace of decoding."""
