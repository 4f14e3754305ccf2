"""The section `views` of a config: crops, photometric draws and masks of one image."""

from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from ssl_jax.config import InputError, check_multiple, key


def defaults() -> dict:
    """The keys of the section; a method reads those it uses."""

    def probability(default, of):
        return key(default, f"probability of {of}", least=0, most=1)

    return dict(
        global_count=key(2, "large crops per image", "views", above=0, most=1000),
        global_size=key(224, "side of a large crop", "pixels", above=0, most=16384),
        global_scale=key(
            (0.25, 1.0),
            "(least, largest) area of a large crop / area of the image, drawn uniformly",
            above=0,
            most=1,
            ordered=True,
        ),
        local_count=key(10, "small crops per image; 0 = none", "views", least=0, most=1000),
        local_size=key(96, "side of a small crop", "pixels", above=0, most=16384),
        local_scale=key(
            (0.05, 0.25),
            "(least, largest) area of a small crop / area of the image, drawn uniformly",
            above=0,
            most=1,
            ordered=True,
        ),
        flip=probability(0.5, "a horizontal flip"),
        jitter=key(
            (0.4, 0.4, 0.2, 0.1),
            "strengths x of colour jitter: brightness, contrast, saturation (factors 1 +- x), hue"
            " (+- x turns)",
            least=0,
            length=4,
        ),
        jitter_prob=probability(0.8, "colour jitter"),
        gray_prob=probability(0.2, "grayscale"),
        blur_prob=key(
            (1.0, 0.1, 0.5),
            "probability of Gaussian blur in the first global view, further global views, local"
            " views",
            least=0,
            most=1,
            length=3,
        ),
        blur_radius=key(
            (0.1, 2.0),
            "(least, largest) standard deviation of the blur, drawn uniformly",
            "pixels",
            above=0,
            most=1000,
            ordered=True,
        ),
        solarize_prob=probability(0.2, "solarisation of the second global view"),
        mask=key(
            "none",
            'how patches of global views are masked: "none", in rectangles ("block"), or each at'
            ' "random"',
            choices=("none", "block", "random"),
        ),
        mask_ratio=key(
            (0.3, 0.3),
            "(least, largest) share of patches that are masked in a masked view, drawn uniformly",
            least=0,
            below=1,
            ordered=True,
        ),
        mask_prob=probability(1.0, "masking a global view"),
        mask_block=key(
            0,
            "size of the smallest rectangle of a block mask; 0 = (shorter side of the grid // 3)^2"
            " (iBOT)",
            "patches",
            least=0,
            most=2**20,
        ),
    )


KEYS = defaults()  # their ranges hold for recipes built by hand too


def check(config: ConfigDict) -> None:
    """Refuses views that do not fit the network's patches. Raises InputError."""
    v, patch = config.views, config.model.patch
    check_multiple("views.global_size", v.global_size, patch, "model.patch")
    if v.local_count:
        check_multiple("views.local_size", v.local_size, patch, "model.patch")
    check_hue("views.jitter", v.jitter)
    check_colours("views.", config.model.in_channels, v)


def check_hue(name: str, jitter: Sequence[float]) -> None:
    """Refuses a shift of the hue by more than half a turn. Raises InputError."""
    if jitter[3] > 0.5:
        raise InputError(f"{name} is {jitter}; the hue (last) is in turns and must be at most 0.5")


def check_colours(prefix: str, channels: int, draws: Any) -> None:
    """Refuses draws that are defined only for RGB if images have other channels.

    prefix: of the names in the message. draws: has jitter, jitter_prob and gray_prob. Raises
    InputError.
    """
    jitter = tuple(draws.jitter)
    if channels != 3 and (draws.gray_prob or (draws.jitter_prob and any(jitter[2:]))):
        raise InputError(
            f"{prefix}jitter is {jitter} and {prefix}gray_prob {draws.gray_prob}, but saturation,"
            f" hue and grayscale are of RGB, not of {channels} channels"
            f" (model.in_channels); set"
            f" {prefix}jitter=({jitter[0]},{jitter[1]},0.0,0.0) and {prefix}gray_prob=0.0"
        )
