"""Image files (JPEG, PNG) as arrays, by Pillow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tangentlab.data.formats import Bytes
from tangentlab.errors import DataFileError

if TYPE_CHECKING:
    from PIL.Image import Image

View = Callable[["Image"], "Image"]
SizedView = Callable[["Image", int], "Image"]


def read_picture(path: Path, view: View | None = None) -> Bytes:
    """The pixels `(3, height, width)`, after `view` (a crop, a change of size); grey images get three equal channels."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataFileError(f"{path}: to read image files, install Pillow: pip install pillow.") from error
    try:
        with Image.open(path) as image:
            coloured = image.convert("RGB")
    except OSError as error:  # a missing file, a truncated one, and what is not an image
        raise DataFileError(f"{path}: cannot be read as an image ({error}).") from error
    pixels: Bytes = np.asarray(coloured if view is None else view(coloured)).transpose(2, 0, 1)
    return pixels


def central_square(image: Image, pixels: int) -> Image:
    """The largest square in the middle, at `pixels` x `pixels`."""
    side = min(image.size)
    left, top = ((length - side) // 2 for length in image.size)
    return _resized(image.crop((left, top, left + side, top + side)), pixels)


def centre_of_squeezed(image: Image, pixels: int) -> Image:
    """The image squeezed to a square of 8/7 `pixels`, of which the middle is kept: 224 of 256 for ImageNet's networks."""
    side = round(pixels * 256 / 224)
    edge = (side - pixels) // 2
    return _resized(image, side).crop((edge, edge, edge + pixels, edge + pixels))


def _resized(image: Image, side: int) -> Image:
    from PIL.Image import Resampling

    return image.resize((side, side), Resampling.BILINEAR)
