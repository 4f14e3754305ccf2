"""The keys of the type `dense`, and the paper's settings."""

import dataclasses

from ssl_jax.config import field
from ssl_jax.evals.classes import absent_field
from ssl_jax.evals.registry import Protocol
from ssl_jax.features import tokens
from ssl_jax.scores.segmentation import NEIGHBOURS

PROTOCOLS = {
    "cribo": Protocol(
        "CrIBo tables 1 and 4: VOC 2012 (augmented) and ADE20K at their native sizes",
        dict(
            data=dict(size=0), crop=0, reduce=True, k=NEIGHBOURS, subsample=(1, 8, 64, 128), runs=5
        ),
    )
}


@dataclasses.dataclass(frozen=True)
class Settings:
    k: int = field(NEIGHBOURS, "number of nearest patches that vote", "patches", above=0)
    vote: str = field(
        "plain",
        'votes of neighbours: equal ("plain"), or weighted by exp(cosine / 0.1) ("softmax")',
        choices=("plain", "softmax"),
    )
    absent: str = absent_field()
    subsample: tuple[int, ...] = field(
        (1,),
        "use one in this many training images; scores of all values are reported, the first is the"
        " main score",
        "images",
        above=0,
    )
    runs: int = field(
        5, "number of random draws that are averaged for each subsample above 1", "draws", above=0
    )
    layers: int = tokens.layers_field()
    reduce: bool = field(
        False,
        "resize images to the next smaller sides that are multiples of the patch; False = cut off"
        " their borders",
    )
