"""An alarm over a stream of scores whose false-alarm probability is bounded for all time."""

from davis.monitor.events import Alarm, Window
from davis.monitor.stream import Monitor
from davis.monitor.together import Merged

__all__ = ["Alarm", "Merged", "Monitor", "Window"]
