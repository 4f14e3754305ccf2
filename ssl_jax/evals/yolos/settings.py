"""The keys of the evaluation type `yolos`, and the papers' settings."""

import dataclasses

from ssl_jax.config import field
from ssl_jax.evals.registry import Protocol
from ssl_jax.views import boxed


@dataclasses.dataclass(frozen=True)
class Settings(boxed.Settings):
    queries: int = field(
        100, "number of detection tokens, the most objects per image", "tokens", above=0
    )
    epochs: int = field(50, "length of the training", "epochs", above=0)
    batch: int = field(8, "images per training step", "images", above=0)
    lr: float = field(
        1e-4, "learning rate of AdamW, falling to 1e-7 on a cosine, one value per epoch", above=0
    )
    weight_decay: float = field(
        1e-4,
        "weight decay of AdamW, except on the encoder's biases, norms, tokens and position"
        " embeddings",
        least=0,
    )
    clip: float = field(0.1, "largest L2 norm of the whole gradient", above=0)
    class_weight: float = field(1.0, "weight of the class in matching and loss", least=0)
    l1_weight: float = field(5.0, "weight of the L1 distance in matching and loss", least=0)
    giou_weight: float = field(2.0, "weight of the generalised IoU in matching and loss", least=0)
    no_object_weight: float = field(0.1, "weight of tokens without an object in the loss", least=0)
    test_size: int = field(320, "length of the shorter side of test images", "pixels", above=0)
    canvas: int = field(
        64,
        "divisor of the sides of a batch's canvas, besides the patch; larger = fewer shapes to"
        " compile",
        "pixels",
        above=0,
    )
    position_size: tuple[int, int] = field(
        (0, 0),
        "(height, width) of the grid on which learned position embeddings are trained; (0, 0) = as"
        " pretrained",
        "pixels",
        least=0,
        length=2,
    )
    middle_size: tuple[int, int] = field(
        (0, 0),
        "(height, width) of the grid of learned codes added after every block but the last; (0, 0)"
        " = none",
        "pixels",
        least=0,
        length=2,
    )


_COCO = dict(
    data=dict(kind="tfds", name="coco/2017", split="train", test_split="validation"),
    queries=100,
    epochs=150,
    batch=32,
    lr=2.5e-5,
    weight_decay=1e-4,
    clip=0.1,
    class_weight=1.0,
    l1_weight=5.0,
    giou_weight=2.0,
    no_object_weight=0.1,
    sizes=tuple(range(480, 801, 16)),
    longest=1333,
    test_size=800,
    flip=0.5,
    crop_prob=0.5,
    crop_from=(400, 500, 600),
    crop_sides=(384, 600),
    canvas=256,
    position_size=(512, 864),
    middle_size=(512, 864),
)
PROTOCOLS = {
    "coco": Protocol("CrIBo tables 5 and 6", _COCO),
    "coco_yolos": Protocol("YOLOS (Fang et al. 2021), its batch of 8", {**_COCO, "batch": 8}),
}
