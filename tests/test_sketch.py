"""The sketch notices images that were seen before, in bounded space, in any order."""

from __future__ import annotations

import pytest
import torch

from davis import sketch as module
from davis.sketch import Sketch


def images(count: int, seed: int) -> torch.Tensor:
    return torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed))


def test_seen_and_unseen() -> None:
    sketch = Sketch()
    sketch.add(images(50, 1))
    assert sketch.share(images(50, 1)) == 1
    assert sketch.share(images(50, 2)) == 0
    assert sketch.share(torch.cat([images(50, 1), images(150, 2)])) == 0.25
    assert sketch.share(images(50, 1).double()) == 1  # float32 values in another type
    assert sketch.share(images(50, 1).to(memory_format=torch.channels_last)) == 1


def test_nothing_seen() -> None:
    assert Sketch().share(images(5, 1)) == 0


def test_bounded_and_still_a_fair_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY", 200)
    seen = torch.rand(5000, 6, generator=torch.Generator().manual_seed(0))
    sketch = Sketch()
    for part in seen.split(700):
        sketch.add(part)
    assert len(sketch.hashes) == 200
    mixed = torch.cat([seen[:1000], torch.rand(1000, 6, generator=torch.Generator().manual_seed(1))])
    found = sketch.share(mixed)
    assert found is not None
    assert 0.3 < found < 0.7  # about 80 of 2,000 hashes are in reach; a share of them has a deviation of 0.06


def test_order_and_parts_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY", 64)
    whole, reverse, left, right = Sketch(), Sketch(), Sketch(), Sketch()
    everything = images(300, 3)
    whole.add(everything)
    reverse.add(everything.flip(0))
    left.add(everything[:100])
    right.add(everything[100:])
    left.merge(right)
    assert torch.equal(whole.hashes, reverse.hashes)
    assert torch.equal(whole.hashes, left.hashes)


def test_out_of_reach_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY", 2)
    sketch = Sketch()
    sketch.add(images(5000, 3))
    assert sketch.share(images(1, 4)) is None
