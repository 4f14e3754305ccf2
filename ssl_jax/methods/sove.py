"""SOVE: Self-Organizing Visual Embeddings, the older version of SOP.

The two papers describe one algorithm in different words: SOVE's judges are SOP's support
embeddings, its concepts (pseudo-classes) are SOPs, its feature sets are memories and its
pseudo-labels Y are contributions. SOVE therefore shares SOP's code. The papers differ in:

- K = 8192 anchors for class tokens, where SOP has 4096 (patches: 512 in both);
- 9 judges including the anchor; SOP's text agrees, but its pseudo-code counts 8 with the anchor;
- Y by similarity to the anchor only; the constant Y (rule "smoothed") is from SOP's pseudo-code;
- no ablations of fixed anchors or of memory sizes (65536 and 8192 rows in both).

Two misprints of SOVE are corrected as in SOP: D and Y have K (k + 1) = 73728 rows (not K (k - 1),
nor 65536).
"""

from ssl_jax import config as config_lib
from ssl_jax.methods import sop

check, make = sop.check, sop.make


def defaults() -> dict:
    """The section `sove` of the config: SOP's keys with SOVE's values for ViT-S/16 on ImageNet."""
    return config_lib.with_defaults(sop.defaults(), {"cls.anchors": 8192})
