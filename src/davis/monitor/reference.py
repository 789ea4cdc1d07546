"""Online p-values: each score is ranked among those before it, then joins them.

Why this and not one fixed calibration set. Let every score so far be exchangeable and B the multiset of the reference
and the newcomer. Given B, the newcomer is equally likely to be any member, so its rank (ties broken at random) is
uniform, *whatever B is*. The next reference is B itself, or B less one member; so all later p-values depend on B and on
scores to come, and are independent of this one. By induction the p-values are independent and uniform. Against a fixed
set they are uniform one by one but not independent: an unlucky set makes them too small for ever, and a martingale on
them rises without any shift.

Why memory may be bounded. Independence of the p-value and the next reference is all that was used. Once the reference
is full, a member of B chosen uniformly at random, *the newcomer included*, is dropped, by a draw that knows nothing of
the scores: given B and which member goes, the newcomer is still equally likely to be any member, so the p-value is
independent of what remains, and what remains is still exchangeable with scores to come. Dropping the oldest would not
do: the newcomer is then never the one that goes, and what remains tells about its rank.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import final


@final
class Reference:
    """A sorted multiset of at most ``capacity`` scores, 8 bytes each."""

    def __init__(self, scores: Iterable[float], *, capacity: int) -> None:
        self.scores = array("d", sorted(scores))
        self.capacity = capacity
        if not len(self.scores) <= capacity:
            raise ValueError(f"capacity is {capacity}, and {len(self.scores)} scores must fit; raise it or give fewer")

    def __len__(self) -> int:
        return len(self.scores)

    def join(self, score: float, *, tie: float, drop: float) -> float:
        """The p-value of a score, which then joins; small for low scores.

        ``tie`` and ``drop`` are fresh uniform draws from (0, 1): where the score stands among equals, and which
        member leaves when there is no room.

        >>> reference = Reference([1.0, 2.0, 2.0], capacity=10)
        >>> reference.join(2.0, tie=0.5, drop=0.5)  # one is lower, and it is one of three equals
        0.625
        >>> len(reference)
        4
        """
        below = bisect_left(self.scores, score)
        upto = bisect_right(self.scores, score, lo=below)
        p_value = (below + tie * (upto - below + 1)) / (len(self.scores) + 1)
        self.scores.insert(upto, score)
        if len(self.scores) > self.capacity:
            self.scores.pop(int(drop * len(self.scores)))
        return p_value
