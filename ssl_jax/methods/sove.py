"""SOVE: Self-Organizing Visual Embeddings, the older version of SOP.

The two papers describe one algorithm in different words: SOVE's judges are SOP's support
embeddings, its concepts (pseudo-classes) are SOPs, its feature sets are memories and its
pseudo-labels Y are contributions. So the objective is SOP's, and what differs is the section of the
config:

- K = 8192 anchors for class tokens, where SOP has 4096 (patches: 512 in both);
- 9 judges, the anchor and 8 more; SOP's text says the same, but its pseudo-code counts 8 with the
  anchor;
- Y by similarity to the anchor; the constant Y (rule "smoothed") is from SOP's pseudo-code, and
  SOVE has none;
- no study of fixed anchors or of the size of the memories (65536 and 8192 rows in both).

Two slips of SOVE's text are read as SOP prints them: D has K (k + 1) = 73728 rows (not K (k - 1),
nor 65536), and Y as many."""

import ml_collections

from ssl_jax.methods import base, sop, voting


def defaults() -> ml_collections.ConfigDict:
    """The `sove` section of the config: the keys of `sop.defaults`, with SOVE's values for ViT-S/16
    on ImageNet.
    """
    c = sop.defaults()
    c.contributions = "similarity"
    c.cls.update(dict(anchors=8192, members=9))
    return c


METHOD = base.Method(
    name="sove",
    defaults=defaults,
    check=sop.check,
    views=voting.views,
    init=sop.init,
    encode=voting.encode,
    objective=sop.objective,
    teacher_of=voting.teacher_of,
    features=voting.features,
    health=voting.health,
    pictures=voting.pictures,
)
