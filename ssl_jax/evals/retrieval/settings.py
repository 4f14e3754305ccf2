"""The keys of the type `retrieval`."""

import dataclasses

from ssl_jax.config import field
from ssl_jax.features import tokens
from ssl_jax.scores import ranking


@dataclasses.dataclass(frozen=True)
class Settings(tokens.Settings):
    ground_truth: str = field(
        "",
        'the benchmark\'s "gnd_roxford5k.json" or "gnd_rparis6k.json" (its .pkl as JSON, see'
        ' launch/revisited_json.py), in data.dir or anywhere; "" = labels say what is relevant',
        path=True,
        acts="",
    )
    crop_queries: bool = field(True, "crop the benchmark's queries out of their images")
    fit: int = field(
        0,
        "images are shrunk to fit a square of this side, keeping their aspect; 0 = as they are",
        "pixels",
        least=0,
        most=16384,
    )
    scales: tuple[float, ...] = field(
        (1.0,), "an image is the mean over its features at these scales", above=0, most=16
    )
    k: tuple[int, ...] = field(
        ranking.KS, "precision among the first k is reported", "images", above=0
    )
