"""Why a score came out as it did: which channels moved it, where in the image, and what it was compared with."""

from davis.explaining.explanation import Channel, Explanation, FusedExplanation, Neighbour
from davis.explaining.one_image import explain

__all__ = ["Channel", "Explanation", "FusedExplanation", "Neighbour", "explain"]
