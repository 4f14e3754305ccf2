"""The keys of the type `davis`, and the papers' settings."""

import dataclasses

from ssl_jax.config import field
from ssl_jax.evals.registry import Protocol
from ssl_jax.scores.propagation import Propagation

_DINO = Propagation()


@dataclasses.dataclass(frozen=True)
class Settings:
    short_side: int = field(
        0,
        "length to which the frames' shorter side is resized (bilinear), keeping the aspect ratio"
        " except for `multiple`; 0 = frames as stored",
        "pixels",
        least=0,
        most=16384,
    )
    multiple: int = field(
        64, "longer side of resized frames is cropped to a multiple of this", "pixels", above=0
    )
    frames: int = field(1, "number of frames per forward pass", "images", above=0)
    previous: int = field(
        _DINO.previous,
        "number of preceding frames, besides the first frame, from which labels are propagated",
        "images",
        above=0,
    )
    radius: int = field(
        _DINO.radius,
        "largest distance, along rows and along columns, of patches from which labels are"
        " propagated",
        "patches",
        above=0,
    )
    top: int = field(
        _DINO.top, "number of similar patches that give a patch its label", "patches", above=0
    )
    temperature: float = field(
        _DINO.temperature, "temperature of the label weights exp(cosine / temperature)", least=1e-6
    )


# Frames are resized by cv2's bilinear kernel, as in DINO's script. The script's standard deviation
# of red, .228 instead of .229, is not reproduced.
_DATA = dict(kind="davis", split="2017/val", test_split="2017/val")
_CHANGES = dict(data=_DATA, short_side=480, multiple=64, frames=1, **_DINO._asdict())
PROTOCOLS = {n: Protocol(f"{n.upper()} table 4", _CHANGES) for n in ("sop", "sove", "flsl")}
