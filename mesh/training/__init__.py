"""mesh.training: a loss, params and an optimiser become a step that workers repeat (docs/training.md)."""

from .backward import Gradients
from .checkpoint import Checkpoint, Checkpoints
from .progress import Callback, History, StepReport
from .step_config import TopK
from .trainer import DistributedTrainer

__all__ = ["Callback", "Checkpoint", "Checkpoints", "DistributedTrainer", "Gradients", "History", "StepReport", "TopK"]
