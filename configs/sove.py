"""SOVE, self-organizing visual embeddings: the older version of SOP, with 8192 anchors.

    ssl-jax train --config=sove:vits16 --config.data.dir=/data/tfds --workdir=runs/sove_vits16
    ssl-jax train --config=sove:photos --workdir=runs/sove_photos

Variants: those of sop.
Hardware: full size: 8 GPUs of 80 GB or a TPU v4-32; small: minutes to hours on a CPU.
Expected time: not published; SOP, the same algorithm, needs 193.5 hours for vits16. Not measured by
us.
Expected number: `ssl-jax show --paper=sove`. Small variants: docs/results.md.

Not published: the arguments of the published models, the batch size, and what the ablations share:
their default scores differently from table to table.
"""

from . import sop

VARIANTS = sop.VARIANTS


def get_config(variant: str = "vits16"):
    return sop.recipe("sove", variant)
