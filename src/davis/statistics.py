"""A bounded, mergeable summary of in-distribution features; stages are fitted from it, not from data."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import ceil, floor
from typing import NamedTuple

import torch
from torch import Tensor

from davis.types import Features, Labels, Logits, double

CAPACITY = 50_000
"""Rows that a summary keeps by default: 410 MB at 2048 channels in float32."""

NEEDS = frozenset(
    {"mean", "gap_mean", "variance", "covariance", "class_means", "predicted_means", "quantiles", "sample"}
)

_CHUNK = 4096  # rows pushed through the shapes at a time
_SKETCH_BITS = 20  # sign, exponent and 11 bits of mantissa: neighbouring bins differ by 2^-11


class Sample(NamedTuple):
    """Rows drawn uniformly from all that were seen, in random order: any prefix is a uniform sample too."""

    features: Features
    logits: Logits
    labels: Labels  # those given, or else the predicted class


class Statistics:
    """What is kept of the features of one pooling after a pass of any length.

    >>> statistics = Statistics({"mean", "quantiles"}, classes=2)
    >>> statistics.update(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), torch.zeros(2, 2))
    >>> statistics.mean.tolist(), statistics.quantile(0.5).item()
    ([1.0, 2.0], 1.5)

    Moments are running float64 sums over every row. Percentiles are exact while the rows fit into
    ``capacity``; beyond it a histogram over the leading 20 bits of the float takes over, off by at
    most 2.5e-4 of its neighbouring values. ``sample`` holds ``capacity`` rows at most. Summaries of parts of the
    data ``merge`` into the summary of the whole; give each part its own ``seed``.
    """

    def __init__(self, needs: Collection[str], *, classes: int, capacity: int = CAPACITY, seed: int = 0) -> None:
        unknown = set(needs) - NEEDS
        if unknown:
            raise ValueError(f"unknown statistic {sorted(unknown)[0]!r}; known: {', '.join(sorted(NEEDS))}")
        if capacity < 1:
            raise ValueError(f"capacity is the number of rows kept and must be at least 1, got {capacity}")
        self.needs = frozenset(needs)
        self.classes = classes
        self.capacity = capacity
        self.count = 0
        self._seed = seed
        self._generator = torch.Generator().manual_seed(seed)
        self._labelled: bool | None = None
        self._mean: Tensor | None = None
        self._scatter: Tensor | None = None  # centred sum of squares: (channel,) or (channel, channel)
        self._gap_sum: Tensor | None = None
        self._class_sums: dict[str, tuple[Tensor, Tensor]] = {}  # name -> sums (class, channel), counts (class,)
        self._channels: int | None = None
        self._rows: list[tuple[Tensor, Sample]] = []  # (random keys, rows)
        self._held = 0  # rows in the list
        self._cutoff = 1.0  # rows with larger keys would not stay
        self._histogram: Tensor | None = None

    # -- filling ----------------------------------------------------------------------------------

    def update(
        self, features: Features, logits: Logits, labels: Labels | None = None, gap: Features | None = None
    ) -> None:
        """Add a batch; ``gap`` is the same images' plain average pooling, where that is needed."""
        self._check(features, logits, labels, gap)
        self._labelled, self._channels = labels is not None, features.shape[1]
        features, logits = features.detach(), logits.detach()
        predicted = logits.argmax(1)
        classes = predicted if labels is None else labels.to(features.device, torch.int64)
        if self._keeps_rows():
            keys = torch.rand(len(features), generator=self._generator, dtype=torch.float64).to(features.device)
            self._keep(keys, Sample(features, logits, classes))
        precise = double(features)
        if "mean" in self.needs or "variance" in self.needs or "covariance" in self.needs:
            mean = precise.mean(0)
            centred = precise - mean
            scatter = centred.T @ centred if "covariance" in self.needs else centred.square().sum(0)
            self._add_moments(len(features), mean, scatter)
        if "gap_mean" in self.needs and gap is not None:
            total = double(gap.detach()).sum(0)
            self._gap_sum = total if self._gap_sum is None else self._gap_sum + total
        for name, by in (("class_means", classes), ("predicted_means", predicted)):
            if name in self.needs:
                sums = precise.new_zeros(self.classes, precise.shape[1]).index_add_(0, by, precise)
                self._add_class_sums(name, sums, torch.bincount(by, minlength=self.classes))
        self.count += len(features)

    def merge(self, other: Statistics) -> Statistics:
        """This summary with another one's rows added; returns itself."""
        if (self.needs, self.classes, self.capacity) != (other.needs, other.classes, other.capacity):
            raise ValueError("only summaries with equal needs, classes and capacity merge")
        if other.count == 0:
            return self
        if self._channels not in (None, other._channels):
            raise ValueError(f"summaries of {self._channels} and {other._channels} channels do not merge")
        self._check_labelled(bool(other._labelled))
        self._labelled, self._channels = other._labelled, other._channels
        if other._mean is not None and other._scatter is not None:
            self._add_moments(other.count, other._mean, other._scatter)
        if other._gap_sum is not None:
            self._gap_sum = other._gap_sum.clone() if self._gap_sum is None else self._gap_sum + other._gap_sum
        for name, (sums, counts) in other._class_sums.items():
            self._add_class_sums(name, sums, counts)
        if other._histogram is not None:
            self._start_histogram()
            self._histogram = (
                other._histogram.clone() if self._histogram is None else self._histogram + other._histogram
            )
            self._rows = self._rows + other._rows if "sample" in self.needs else []
            self._held = sum(len(keys) for keys, _ in self._rows)
        else:
            for keys, rows in list(other._rows):
                self._keep(keys, rows)
        self.count += other.count
        self._compact()
        return self

    def through(
        self, shape: Callable[[Features], Features], head: Callable[[Features], Logits], needs: Collection[str]
    ) -> Statistics:
        """The statistics of what a score behind ``shape`` and ``head`` gets to see, from the sample."""
        sample = self.sample
        after = Statistics(needs, classes=self.classes, capacity=self.capacity, seed=self._seed)
        for start in range(0, len(sample.features), _CHUNK):
            features = shape(sample.features[start : start + _CHUNK])
            labels = sample.labels[start : start + _CHUNK] if self._labelled else None
            after.update(features, head(features), labels)
        return after

    # -- reading ----------------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        """(channel,) float64."""
        return self._have(self._mean, "mean")

    @property
    def gap_mean(self) -> Tensor:
        """(channel,) mean of the average-pooled features, whatever this pooling is."""
        return self._have(self._gap_sum, "gap_mean") / self.count

    @property
    def variance(self) -> Tensor:
        """(channel,) unbiased; 0 from a single row."""
        scatter = self._have(self._scatter, "variance")
        return (scatter.diagonal() if scatter.ndim == 2 else scatter) / max(self.count - 1, 1)

    @property
    def covariance(self) -> Tensor:
        """(channel, channel) about the mean, divided by the number of rows."""
        scatter = self._have(self._scatter, "covariance")
        if scatter.ndim == 1:
            raise ValueError(self._missing("covariance"))
        return scatter / self.count

    @property
    def class_means(self) -> tuple[Tensor, Tensor]:
        """(class, channel) means by given label, or predicted class without labels; and the counts."""
        return self._means_by("class_means")

    @property
    def predicted_means(self) -> tuple[Tensor, Tensor]:
        """(class, channel) means by predicted class, even where labels were given; and the counts."""
        return self._means_by("predicted_means")

    @property
    def sample(self) -> Sample:
        """Up to ``capacity`` rows, uniformly drawn."""
        if "sample" not in self.needs or not self._rows:
            raise ValueError(self._missing("sample"))
        self._compact()
        return self._rows[0][1]

    def quantile(self, q: float) -> Tensor:
        """The value below which a share ``q`` of all entries of all rows lies, linearly interpolated."""
        if "quantiles" not in self.needs or self.count == 0:
            raise ValueError(self._missing("quantiles"))
        if self._histogram is None:
            values = torch.cat([rows.features.flatten() for _, rows in self._rows])
            return quantile(values, q)
        total = int(self._histogram.sum())
        rank = q * (total - 1)
        edges = torch.tensor([floor(rank) + 1, ceil(rank) + 1], device=self._histogram.device)
        ends = _bin_values(torch.searchsorted(self._histogram.cumsum(0), edges))
        return ends[0].lerp(ends[1], rank - floor(rank))

    # -- the parts --------------------------------------------------------------------------------

    def _check(self, features: Features, logits: Logits, labels: Labels | None, gap: Features | None) -> None:
        if features.ndim != 2 or len(features) == 0:
            raise ValueError(f"features must be (batch, channel) with a row at least, got {tuple(features.shape)}")
        if self._channels not in (None, features.shape[1]):
            raise ValueError(f"features have {features.shape[1]} channels; earlier batches had {self._channels}")
        if logits.shape != (len(features), self.classes):
            raise ValueError(f"logits must be {(len(features), self.classes)}, got {tuple(logits.shape)}")
        if not features.isfinite().all():
            raise ValueError("features contain NaN or infinity; look for broken images in the fit data")
        if "gap_mean" in self.needs and (gap is None or gap.ndim != 2 or len(gap) != len(features)):
            raise ValueError("these statistics need the average-pooled features of the batch too: update(..., gap=...)")
        self._check_labelled(labels is not None)
        if labels is None:
            return
        if labels.shape != (len(features),) or labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(
                f"labels must be one integer per image, got {tuple(labels.shape)} of {labels.dtype} "
                f"for {len(features)} images"
            )
        if labels.min() < 0 or labels.max() >= self.classes:
            raise ValueError(
                f"labels must lie in 0..{self.classes - 1}, the classifier's classes; "
                f"got {int(labels.min())}..{int(labels.max())}"
            )

    def _check_labelled(self, labelled: bool) -> None:
        if self._labelled not in (None, labelled):
            raise ValueError("some batches came with labels and some without; give labels for all or for none")

    def _add_moments(self, count: int, mean: Tensor, scatter: Tensor) -> None:
        if self._mean is None or self._scatter is None:
            self._mean, self._scatter = mean.clone(), scatter.clone()
            return
        total = self.count + count
        shift = mean - self._mean
        between = torch.outer(shift, shift) if scatter.ndim == 2 else shift.square()
        self._scatter = self._scatter + scatter + between * (self.count * count / total)
        self._mean = self._mean + shift * (count / total)

    def _add_class_sums(self, name: str, sums: Tensor, counts: Tensor) -> None:
        if name in self._class_sums:
            before, seen = self._class_sums[name]
            sums, counts = before + sums, seen + counts
        self._class_sums[name] = (sums, counts)

    def _keeps_rows(self) -> bool:
        return "sample" in self.needs or "quantiles" in self.needs

    def _keep(self, keys: Tensor, rows: Sample) -> None:
        """Keep the rows with the smallest random keys: a uniform sample however the data are cut up."""
        if "quantiles" in self.needs and (self._histogram is not None or self._held + len(keys) > self.capacity):
            self._start_histogram()
            self._count_bins(rows.features)
        if "sample" not in self.needs and self._histogram is not None:
            self._rows, self._held = [], 0
            return
        chosen = keys < self._cutoff
        self._rows.append((keys[chosen], Sample(*(part[chosen] for part in rows))))
        self._held += int(chosen.sum())
        if self._held > self.capacity + self.capacity // 4:
            self._compact()

    def _start_histogram(self) -> None:
        """From the rows held to their histogram, before the first of them is let go."""
        if self._histogram is None and self._rows:
            for part in torch.cat([rows.features for _, rows in self._rows]).split(_CHUNK):
                self._count_bins(part)

    def _count_bins(self, features: Features) -> None:
        bins = _bins(features)
        if self._histogram is None:
            self._histogram = torch.zeros(2**_SKETCH_BITS, dtype=torch.int64, device=bins.device)
        self._histogram.index_add_(0, bins, torch.ones_like(bins))

    def _compact(self) -> None:
        """One block of rows, sorted by key, ``capacity`` at most."""
        if "sample" not in self.needs or not self._rows:
            return
        if len(self._rows) == 1 and self._held <= self.capacity and bool((self._rows[0][0].diff() >= 0).all()):
            return
        keys = torch.cat([kept for kept, _ in self._rows])
        order = keys.argsort()[: self.capacity]
        parts = (torch.cat(column)[order] for column in zip(*(rows for _, rows in self._rows), strict=True))
        self._rows, self._held = [(keys[order], Sample(*parts))], len(order)
        if self._held == self.capacity:
            self._cutoff = float(keys[order[-1]])

    def _means_by(self, name: str) -> tuple[Tensor, Tensor]:
        if name not in self._class_sums:
            raise ValueError(self._missing(name))
        sums, counts = self._class_sums[name]
        return sums / counts.clamp_min(1)[:, None], counts

    def _have(self, value: Tensor | None, name: str) -> Tensor:
        if value is None:
            raise ValueError(self._missing(name))
        return value

    def _missing(self, name: str) -> str:
        if self.count == 0:
            return "no images were seen: the fit data are empty"
        return f"these statistics were collected without {name!r} (they hold: {', '.join(sorted(self.needs))})"


def quantile(values: Tensor, q: float) -> Tensor:
    """The linearly interpolated quantile of a flat tensor of any size, in float64.

    ``torch.quantile`` refuses more than 16 million values; selection needs no sort and has no limit.
    """
    rank = q * (len(values) - 1)
    below = double(values.kthvalue(floor(rank) + 1).values)
    above = double(values.kthvalue(ceil(rank) + 1).values) if rank > floor(rank) else below
    return below + (above - below) * (rank - floor(rank))


def _bins(features: Features) -> Tensor:
    bits = features.detach().float().flatten().view(torch.int32).long()
    # Order-preserving: negative floats count downwards in their bit pattern.
    ordered = torch.where(bits < 0, -bits - 1, bits + 2**31)
    return ordered >> (32 - _SKETCH_BITS)


def _bin_values(bins: Tensor) -> Tensor:
    """The middle of each bin, in float64."""
    width = 2 ** (32 - _SKETCH_BITS)
    ends = torch.stack([bins * width, bins * width + width - 1])
    bits = torch.where(ends >= 2**31, ends - 2**31, -ends - 1)
    return double(bits.to(torch.int32).view(torch.float32)).mean(0)
