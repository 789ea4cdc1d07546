"""Heat maps as pictures that can be read at any size of the image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Array = NDArray[Any]
Point = tuple[float, float]  # across and down, as shares of the width and the height

_SIDE, _LONGEST = 320, 1280  # pixels: what the shorter side is brought near, what the longer one stays within
_UP, _DOWN = (217, 95, 2), (27, 110, 180)  # raises the score, lowers it: apart for the colour-blind too
_TEXT, _LINE, _GAP, _COLUMNS = 14, 18, 8, 3  # of a sheet
_NUMBER = 18  # pixels: the least height of a ring's number
LEGEND = (
    "The higher a score, the more the picture is like what the network knows. "
    "Orange parts raise the score, blue ones lower it. Each map has a colour scale of its own: a refused picture may "
    "glow as much as an accepted one."
)
FADED = "Colours are faded as far as a map does not account for the score."
RINGS = "Rings: the peaks of the channels through which the pooling changes the score most, the strongest first."


def enlarged(picture: Array) -> Image.Image:
    """A picture (height, width, 3), each pixel a square of pixels where it is small."""
    factor = _factor(*picture.shape[:2])
    return Image.fromarray(picture.repeat(factor, 0).repeat(factor, 1))


def heated(picture: Array, heat: Array, points: Iterable[Point], *, share: float = 1.0) -> Image.Image:
    """The picture under a heat map of its size, the points ringed and numbered; one ring where several meet.

    ``share``: how much of its colour the map is given, from 0 to 1.
    """
    strength = np.abs(heat).max() or 1.0
    weight = np.clip(np.abs(heat) / strength, 0, 1)[..., None] * (0.85 * share)
    colour = np.where(heat[..., None] >= 0, np.array(_UP), np.array(_DOWN))
    grey = picture.mean(2, keepdims=True).repeat(3, 2) * 0.75 + 255 * 0.1
    image = enlarged((grey * (1 - weight) + colour * weight).round().astype(np.uint8))
    meeting: dict[Point, list[str]] = {}
    for number, point in enumerate(points, 1):
        meeting.setdefault(point, []).append(str(number))
    pen = ImageDraw.Draw(image)
    radius, size = max(8, max(image.size) // 40 + 2), max(_NUMBER, max(image.size) // 30)
    font = _font(size)
    centres = [(across * image.width, down * image.height) for across, down in meeting]
    for x, y in centres:
        for width, paint in ((4, "black"), (2, "white")):  # a dark edge, for rings on a pale ground
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline=paint, width=width)
    for (x, y), numbers in zip(centres, meeting.values(), strict=True):  # after the rings, which would cover them
        text = ", ".join(numbers)
        half = font.getlength(text) / 2 + 3
        middle = min(max(x, half), image.width - half)
        low = y + radius + 1 + size <= image.height  # below its ring it meets no ring beside it
        place, anchor = (y + radius + 1, "mt") if low else (y - radius - 2, "mb")
        for stroke, paint in ((3, "black"), (1, "white")):  # bold, with a dark edge: read at 224 pixels too
            pen.text((middle, place), text, paint, font, anchor, stroke_width=stroke, stroke_fill=paint)
    return image


def sheet(panels: Sequence[tuple[Image.Image, str]], footer: str) -> Image.Image:
    """Pictures of one size beside one another, three to a row, each over its caption."""
    width, height = panels[0][0].size
    columns = min(_COLUMNS, len(panels))
    captions = [_wrapped(caption, width) for _, caption in panels]
    whole = columns * width + (columns + 1) * _GAP
    last = _wrapped(footer, whole - 2 * _GAP)
    starts = range(0, len(panels), columns)
    deep = [height + 2 * _GAP + _LINE * max(map(len, captions[start : start + columns])) for start in starts]
    image = Image.new("RGB", (whole, _GAP + sum(deep) + _LINE * len(last) + _GAP), "white")
    pen = ImageDraw.Draw(image)
    for place, (panel, _) in enumerate(panels):
        row, column = divmod(place, columns)
        left, top = _GAP + column * (width + _GAP), _GAP + sum(deep[:row])
        image.paste(panel, (left, top))
        _write(pen, left, top + height + _GAP // 2, captions[place])
    _write(pen, _GAP, _GAP + sum(deep), last)
    return image


def _factor(height: int, width: int) -> int:
    wanted = round(_SIDE / min(height, width))
    return max(1, min(wanted, _LONGEST // max(height, width)))


def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def _write(pen: ImageDraw.ImageDraw, left: int, top: int, lines: Sequence[str]) -> None:
    for place, line in enumerate(lines):
        pen.text((left, top + place * _LINE), line, fill="black", font=_font(_TEXT))


def _wrapped(text: str, width: int) -> list[str]:
    """The lines of a text, broken between words where they are too long."""
    font, lines = _font(_TEXT), list[str]()
    for line in text.splitlines():
        words = line.split(" ")
        lines.append(words[0])
        for word in words[1:]:
            longer = f"{lines[-1]} {word}"
            if font.getlength(longer) <= width:
                lines[-1] = longer
            else:
                lines.append(word)
    return lines
