"""Training the zoo's networks: the paper's recipe, seeded, resumable, the same code on a CPU and as a CUDA graph."""

from davis.training.loop import Progress, train
from davis.training.recipe import Recipe

__all__ = ["Progress", "Recipe", "train"]
