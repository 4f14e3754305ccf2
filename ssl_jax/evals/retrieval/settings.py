"""The keys of the type `retrieval`."""

import dataclasses

from ssl_jax.config import field
from ssl_jax.features import tokens
from ssl_jax.scores import ranking


@dataclasses.dataclass(frozen=True)
class Settings(tokens.Settings):
    ground_truth: str = field(
        "",
        'the benchmark\'s "gnd_roxford5k.json" or "gnd_rparis6k.json" (from its .pkl by'
        ' launch/revisited_json.py), a path or a name in data.dir; "" = images with the same label'
        " are relevant",
        path=True,
        acts="",
    )
    crop_queries: bool = field(True, "crop the benchmark's queries out of their images")
    fit: int = field(
        0,
        "side of the square into which images are shrunk, keeping their aspect ratio; 0 = images"
        " as they are",
        "pixels",
        least=0,
        most=16384,
    )
    scales: tuple[float, ...] = field(
        (1.0,), "scales of the image over which its features are averaged", above=0, most=16
    )
    k: tuple[int, ...] = field(
        ranking.KS, "numbers k of first results whose precision is reported", "images", above=0
    )
