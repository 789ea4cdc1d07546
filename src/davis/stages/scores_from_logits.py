"""Scores that read logits, some with the size of the features beside them. All arithmetic is float64."""

from __future__ import annotations

from typing import Literal, final

from davis.stages.base import Score
from davis.stages.confidence import energy, generalised_entropy, max_probability
from davis.stages.topk import kept, ratio
from davis.types import Classifier, Features, Logits, Scores, double


@final
class Energy(Score, name="energy"):
    """Energy (Liu et al., 2020): t * logsumexp(f / t); ``multiply=false`` leaves out the leading t."""

    def __init__(self, *, t: float = 1, multiply: bool = True) -> None:
        super().__init__()
        self.t = t
        self.multiply = multiply
        self.check_positive("t")

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        score = energy(logits, self.t)
        return score if self.multiply else score / self.t


@final
class Msp(Score, name="msp"):
    """MSP (Hendrycks and Gimpel, 2017): the largest softmax probability at temperature t.

    In float32 the softmax of large logits saturates at 1 and ties most images; float64 from log
    space keeps them apart.
    """

    def __init__(self, *, t: float = 1) -> None:
        super().__init__()
        self.t = t
        self.check_positive("t")

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        return max_probability(logits, self.t)


@final
class MaxLogit(Score, name="maxlogit"):
    """MaxLogit (Hendrycks et al., 2022): the largest logit."""

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        return double(logits).amax(1)


@final
class Gen(Score, name="gen"):
    """GEN (Liu et al., 2023): minus the sum of (p (1 - p))^gamma over the m largest probabilities."""

    def __init__(self, *, gamma: float = 0.1, m: int = 100) -> None:
        super().__init__()
        self.gamma = gamma
        self.m = m
        self.check_positive("gamma", "m")

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        return -generalised_entropy(logits, self.gamma, self.m)


@final
class GradNorm(Score, name="gradnorm"):
    """GradNorm (Huang et al., 2021): the L1 norm of the last layer's gradient, in closed form.

    ||h||_1 * sum_c |K p_c - 1| / t for the target of ones; ``uniform`` (1 / K) is 1 / K of it.
    """

    def __init__(self, *, target: Literal["ones", "uniform"] = "ones", t: float = 1) -> None:
        super().__init__()
        self.target = target
        self.t = t
        self.check_positive("t")

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        classes = logits.shape[1]
        residual = (classes * (double(logits) / self.t).softmax(1) - 1).abs().sum(1)
        norm = double(features).abs().sum(1) * residual / self.t
        return norm if self.target == "ones" else norm / classes


@final
class Lts(Score, name="lts"):
    """LTS (Djurisic et al., 2024): energy of the unchanged logits times r^2.

    r is the sum of the rectified features over the sum of their top channels; 1 for a dead row.
    """

    def __init__(self, *, p: float = 95) -> None:
        super().__init__()
        self.p = p
        self.check_percent("p")

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        r = ratio(features.relu(), kept(features.shape[1], self.p), undefined=1)
        return energy(double(logits) * r.square())
