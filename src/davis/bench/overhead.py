"""What a detector costs beside the classifier's own pass, in arithmetic that does not depend on the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch.utils.flop_counter import FlopCounterMode

from davis.backbone import Backbone
from davis.detector import Detector
from davis.types import Images

_PER_VALUE = {"std": 3, "max": 1, "min": 1, "median": 6, "median_mean": 6, "entropy": 4, "entropy_paper": 4}
"""Operations per value of the map for each statistic; of a sort of 64 values, its log2 comparisons."""


def overhead(backbone: Backbone, detectors: Sequence[Detector], images: Images) -> dict[str, float]:
    """Floating-point operations per image: of the pass under ``model``, of what each detector adds under its spec.

    Products of matrices and convolutions are counted by torch as they run, two for a multiply-add; pooling by the
    values that it reads. Methods that move images are left out: they cost whole passes.
    """
    one = images[:1]
    detectors = [detector for detector in detectors if not detector.needs_pixels]
    activations = backbone(one, statistics=frozenset[str]().union(*(detector.reads for detector in detectors)))
    found = {"model": _counted(lambda: backbone(one, statistics=()))}
    values = activations.mean.shape[1] * int(activations.positions[0])
    for detector in detectors:
        pooling = sum(_PER_VALUE[statistic] for statistic in detector.reads) * values
        found[detector.spec] = _counted(partial(detector.score, activations)) + pooling
    return found


def _counted(work: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())
