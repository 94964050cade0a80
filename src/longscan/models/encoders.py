"""`ImageEncoder`: sequences of small images, as in the pendulum task of CRU (Schirmer et al. 2022) and S5 (Smith et al. 2023).

Each image passes through a 5x5 convolution to 12 channels, ReLU and 2x2 max pooling, a 3x3 convolution of stride 2 to 12
channels, ReLU and 2x2 max pooling, and a linear map to d_model values with ReLU, as in the authors' code. A last linear map of
these values and of the inputs that belong to no image, such as the elapsed time, gives the encoding.
"""

from math import prod

import torch
from torch import Tensor, nn

from longscan._types import PositiveInt

CHANNELS = 12
MIN_SIDE = 6  # smaller images have no pixel left after the second pooling

ImageShape = tuple[PositiveInt, PositiveInt, PositiveInt]  # channels, height, width


class ImageEncoder(nn.Module):
    """Map inputs (B, L, d_input), each of which begins with the pixels of an image, to vectors (B, L, d_model).

    Args:
        image_shape: channels, height and width of an image, whose pixels are stored in this order.
        d_input: number of inputs of a step, at least the number of pixels.
        d_model: size of an encoding.

    Raises ValueError if the image is too small or has more values than a step has inputs.
    """

    def __init__(self, image_shape: ImageShape, d_input: int, d_model: int) -> None:
        super().__init__()
        channels, height, width = image_shape
        if min(height, width) < MIN_SIDE:
            raise ValueError(f"`image_shape` must have a height and width of at least {MIN_SIDE}, got {image_shape}")
        if prod(image_shape) > d_input:
            raise ValueError(f"`image_shape` must have at most d_input ({d_input}) values, got {image_shape}")
        self.image_shape = image_shape
        pooled = [((side // 2 - 1) // 2 + 1) // 2 for side in (height, width)]
        self.images = nn.Sequential(
            nn.Conv2d(channels, CHANNELS, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(CHANNELS * prod(pooled), d_model),
            nn.ReLU(),
        )
        self.dense = nn.Linear(d_model + d_input - prod(image_shape), d_model)

    @property
    def weight(self) -> Tensor:
        """The weight of the last linear map, whose dtype and device are those of the encoding."""
        return self.dense.weight

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the encodings (B, L, d_model) of inputs (B, L, d_input)."""
        size = prod(self.image_shape)
        pixels, others = inputs[..., :size], inputs[..., size:]
        images = pixels.flatten(0, -2).unflatten(-1, self.image_shape)  # type: ignore[no-untyped-call]
        # A size of -1 would be unknown for inputs without steps.
        features = self.images(images).view(*inputs.shape[:-1], self.dense.out_features)
        encoded: Tensor = self.dense(torch.cat([features, others.to(features.dtype)], -1))
        return encoded
