"""Choosing a detector and its settings from in-distribution images alone."""

from davis.tuning.advice import Recommendation as Recommendation
from davis.tuning.advice import recommend as recommend
from davis.tuning.drawing import draw as draw
from davis.tuning.grid import DEFAULT as DEFAULT
from davis.tuning.grid import default_grid as default_grid
from davis.tuning.grid import expand as expand
from davis.tuning.proxies import parse_proxies as parse_proxies
from davis.tuning.search import tune as tune
from davis.tuning.search import tune_from_activations as tune_from_activations
from davis.tuning.surface import Tuning as Tuning
