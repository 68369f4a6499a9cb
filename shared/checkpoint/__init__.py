"""Models on disk: formats, shapes, vocabularies. Knows no torch and no devices."""

from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.opening import open_checkpoint
from shared.checkpoint.spec import ModelSpec

__all__ = ["Checkpoint", "ModelSpec", "open_checkpoint"]
