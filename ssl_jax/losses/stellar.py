"""STELLAR: sparse tokens that rebuild the image, agree with balanced prototypes, and stay the same
across views.

Source: "Learning Sparse Visual Representations via Spatial-Semantic Factorization" (STELLAR), eq. 3
to 6; what the text leaves open (temperatures, weights, the class token's terms, KoLeo) follows the
official code.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ssl_jax.losses import meters
from ssl_jax.ops import arguments, divergence, sinkhorn
from ssl_jax.ops.koleo import koleo

WEIGHTS = {"cluster": 1.0, "align": 1.0, "koleo": 0.1}  # a2, a3, a4 of eq. 6
RECONSTRUCTION = {"pixel": 10.0, "code": 0.05}  # a1


def stellar(
    *,
    token_logits=None,
    masked_token_logits=None,
    matches=None,
    teacher_token_logits=None,
    token_matches=None,
    cls_logits=None,
    masked_cls_logits=None,
    local_cls_logits=None,
    teacher_cls_logits=None,
    tokens=None,
    masked_tokens=None,
    reconstruction=None,
    target=None,
    token_prototypes=None,
    cls_prototypes=None,
    target_temperature=0.06,
    temperature=0.12,
    num_iters: int = 3,
    weights=None,
):
    """Reconstruction, clustering, set alignment and KoLeo of a batch of B images, r sparse tokens
    each.

    With H(q, l) = - sum_k q_k log softmax(l / temperature)_k and balanced targets q =
    Sinkhorn(scores / target_temperature), computed over all tokens of the batch at once and
    constant, where the scores are the teacher's logits if given, else the main view's own:

        L = a1 L_rec + a2 (L_clu + L_clu_cls) + a3 (L_align + L_align_cls + L_local_cls) + a4
        (KoLeo(S) + KoLeo(S'))     (eq. 6) L_clu   = mean over B, r     of H(q[j], token_logits[j])
        (eq. 4; with a teacher: q[token_matches[j]]) L_align = mean over B, V, r' of
        H(q[matches[j]], masked_token_logits[j])  (eq. 5)
        the terms of the class token are the same with one token, whose match is the teacher's (or
        main view's) class token; L_rec   = mean squared error over all pixels, or mean
        cross-entropy of codes                                     (eq. 3) KoLeo   = mean over
        tokens of `ops.koleo`, neighbours within the same view of the same image.

    Every part may be None: its terms are left out. Views run one after another, and their logits
    are recomputed for the gradient: with prototypes the largest arrays are a few [B, r, K].

    Args:
      token_logits: [B, r, K] of the main view; any float type (computed in float32 or wider).
      masked_token_logits: [B, V, r', K] of masked views; needs `matches`.
      matches: int [B, V, r'], the target token of each token of a masked view (`ops.align_sets`).
      teacher_token_logits: [B, s, K]: targets from a teacher. No gradient. None: from token_logits
      (s = r). token_matches: int [B, r], the teacher's token of each token of the main view; needed
      if both have logits. cls_logits: [B, K'] of the main view's class token.
      masked_cls_logits: [B, V, K'] of masked views.
      local_cls_logits: [B, W, K'] of local crops, which have no other.
      teacher_cls_logits: [B, K']: targets from a teacher. No gradient.
      tokens: [B, r, d], the encoder's sparse tokens of the main view, for KoLeo.
      masked_tokens: [B, V, r', d], those of masked views, likewise.
      reconstruction: [B, n, c] pixels in [0, 1], or [B, n, K''] logits of codes.
      target: [B, n, c] pixels, or int [B, n] codes; with reconstruction.
      token_prototypes: [K, e]: if given, the STUDENT's token logits above are embeddings [..., e]
        instead, and the logits are their inner products with these, at full float32 precision.
        Teacher logits are always logits.
      cls_prototypes: [K', e], the same of the class token.
      target_temperature: > 0, a number or a traced scalar.
      temperature: > 0, likewise.
      num_iters: of Sinkhorn-Knopp.
      weights: {"reconstruction": a1, "cluster": a2, "align": a3, "koleo": a4}; what it lacks is as
        published: 10 for pixels and .05 for codes, 1, 1, .1. A term of weight 0 is still reported.

    Returns:
      dict of scalars: loss, and of the parts given
        reconstruction_loss, and psnr (dB, mean over images) or code_accuracy;
        cluster_loss, align_loss, cls_cluster_loss, cls_align_loss, cls_local_loss; koleo,
        masked_koleo; token_teacher_entropy, token_marginal_entropy: mean entropy of a target and
        entropy of the mean target, nats (K alike: log K); token_usage: share of the K prototypes
        that are the likeliest of at least one token of the batch; the same for cls_;
        match_agreement: share of masked tokens whose likeliest prototype is their target's;
        cls_agreement: of masked class tokens.
      The last three kinds have no gradient.

    Raises:
      ValueError: shapes that do not fit, a part without what it needs, nothing to learn from,
      temperatures <= 0 (where known).

    Example:
      >>> import jax.numpy as jnp
      >>> tokens = jnp.eye(4)[None, :2]  # one image, two tokens, four prototypes
      >>> terms = stellar(token_logits=jnp.zeros((1, 2, 4)), tokens=tokens)
      >>> print(terms["cluster_loss"].round(4), terms["koleo"].round(4))  # log 4 and log(2) / 2
      1.3863 0.3466

    Reference: STELLAR section 3, appendix C.1.
    """
    arguments.require_positive("target_temperature", target_temperature)
    arguments.require_positive("temperature", temperature)
    weights = {**WEIGHTS, **(weights or {})}
    unknown = sorted(set(weights) - {"reconstruction", *WEIGHTS})
    arguments.require(
        not unknown,
        "a key of weights",
        ", ".join(unknown),
        "reconstruction, cluster, align or koleo",
    )
    heat = _Heat(target_temperature, temperature, num_iters)
    terms, parts = {}, {"cluster": [], "align": [], "koleo": []}

    views = {} if masked_token_logits is None else {"align": (masked_token_logits, matches)}
    found = _clustering(
        "token",
        "",
        token_logits,
        teacher_token_logits,
        token_matches,
        views,
        token_prototypes,
        heat,
    )

    def one(x):
        return None if x is None else jnp.asarray(x)[..., None, :]

    views = {
        name: x
        for name, x in (("align", masked_cls_logits), ("local", local_cls_logits))
        if x is not None
    }
    views = {
        name: (one(x), jnp.zeros((*jnp.shape(x)[:-1], 1), jnp.int32)) for name, x in views.items()
    }
    index = None if cls_logits is None else jnp.zeros((jnp.shape(cls_logits)[0], 1), jnp.int32)
    found |= _clustering(
        "cls", "cls_", one(cls_logits), one(teacher_cls_logits), index, views, cls_prototypes, heat
    )
    for name, value in found.items():
        terms[name] = value
        if name.endswith("_loss"):
            parts["cluster" if "cluster" in name else "align"].append(value)

    for name, x in (("koleo", tokens), ("masked_koleo", masked_tokens)):
        if x is not None:
            terms[name] = koleo(x).mean()
            parts["koleo"].append(terms[name])
    if reconstruction is not None or target is not None:
        kind, rebuilt = _reconstruction(reconstruction, target)
        weights.setdefault("reconstruction", RECONSTRUCTION[kind])
        terms |= rebuilt
        parts["reconstruction"] = [rebuilt["reconstruction_loss"]]
    arguments.require(
        any(parts.values()),
        "the input",
        "empty",
        "at least one of logits, tokens or a reconstruction",
    )
    # A weight of exactly 0 takes its terms out, so that one that overflows cannot turn the sum into
    # NaN.
    counted = [
        (weights[name], values)
        for name, values in parts.items()
        if values and not _is_zero(weights[name])
    ]
    return {
        "loss": sum((weight * sum(values) for weight, values in counted), start=jnp.zeros(())),
        **terms,
    }


class _Heat(NamedTuple):
    target: float
    prediction: float
    num_iters: int


def _is_zero(weight) -> bool:
    return arguments.known(weight) and float(weight) == 0


def _logits(x, prototypes):
    """Logits of embeddings [..., e] with prototypes [K, e]; logits themselves if there are none."""
    x = jnp.asarray(x)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (
        x
        if prototypes is None
        else jnp.einsum(
            "...e,ke->...k", x, prototypes.astype(x.dtype), precision=jax.lax.Precision.HIGHEST
        )
    )


def _clustering(
    meter, prefix, student, teacher, student_index, views, prototypes, heat: _Heat
) -> dict:
    """Terms and meters of one head: student [B, r, .] or None, teacher [B, s, K] or None, views
    {name: ([B, V, r', .], index)}.
    """
    if student is None and teacher is None:
        arguments.require(
            not views,
            f"the targets of the {meter} views",
            "absent",
            f"given by {meter}_logits or the teacher",
        )
        return {}
    kind = "logits [B, r, K]" if prototypes is None else "embeddings [B, r, e]"
    if student is not None:
        wide = None if prototypes is None else jnp.shape(prototypes)[-1]
        arguments.require_shape(
            f"{meter}_logits",
            student,
            (None, None, wide),
            f"{kind} (for the class token: without r)",
        )
        student = _logits(student, prototypes)
    else:
        student_index = None
    scores = jax.lax.stop_gradient(student if teacher is None else _logits(teacher, None))
    batch, count, width = scores.shape
    arguments.require(
        scores.size > 0, f"the shape of the {meter} targets", scores.shape, "without an empty axis"
    )
    potentials = sinkhorn.sinkhorn_potentials(
        scores.reshape(-1, width), temperature=heat.target, num_iters=heat.num_iters
    )

    def loss(logits, index):
        return sinkhorn.sinkhorn_cross_entropy(
            scores,
            logits,
            potentials=potentials,
            index=index,
            target_temperature=heat.target,
            temperature=heat.prediction,
        ).mean()

    terms, (likeliest, meters) = {}, _meters(meter, scores, potentials, heat.target)
    if student is not None:
        fits = student.shape[0] == batch and student.shape[2] == width
        arguments.require(
            fits,
            f"the shape of {meter}_logits",
            student.shape,
            f"[{batch}, r, {width}] as the teacher's",
        )
        if teacher is None:
            terms[f"{prefix}cluster_loss"] = loss(student, None)
        else:
            arguments.require(
                student_index is not None,
                f"{meter}_matches",
                None,
                "given, because the targets are a teacher's",
            )
            terms[f"{prefix}cluster_loss"] = loss(student, student_index)

    @jax.checkpoint
    def view(arrays):
        logits, index = _logits(arrays[0], prototypes), arrays[1]
        same = jnp.argmax(logits, axis=-1) == jnp.take_along_axis(likeliest, index, axis=-1)
        return loss(logits, index), same.astype(jnp.float32).mean()

    for name, (x, index) in views.items():
        arguments.require(
            index is not None,
            "matches",
            None,
            "given, one target token for each token of a masked view",
        )
        arguments.require_shape(
            f"{name} {meter} logits", x, (batch, None, None, None), f"[{batch}, V, r', .]"
        )
        arguments.require_shape(
            "matches",
            index,
            jnp.shape(x)[:-1],
            f"{jnp.shape(x)[:-1]} as the logits of the masked views",
        )
        arguments.require(
            jnp.size(x) > 0,
            f"the shape of the {name} {meter} logits",
            jnp.shape(x),
            "without an empty axis",
        )
        by_view, same = jax.lax.map(
            view, (jnp.moveaxis(jnp.asarray(x), 1, 0), jnp.moveaxis(jnp.asarray(index), 1, 0))
        )
        terms[f"{prefix}{name}_loss"] = by_view.mean()
        if name == "align":
            meters["match_agreement" if not prefix else f"{prefix}agreement"] = same.mean()
    return terms | meters


def _meters(meter, scores, potentials, temperature):
    """Index of the likeliest prototype of every target [B, s], and what the targets of all tokens
    together look like.
    """

    def token(scores):  # [B, K]: one token at a time, so that the targets of all are never held
        log_q = jax.nn.log_softmax(scores / temperature + potentials, axis=-1)
        return (
            divergence.entropy(log_probs=log_q).mean(),
            jnp.exp(log_q).mean(axis=0),
            jnp.argmax(log_q, axis=-1),
            meters.wins(log_q),
        )

    entropy, marginal, likeliest, wins = jax.lax.map(token, jnp.moveaxis(scores, 1, 0))
    look = {
        f"{meter}_teacher_entropy": entropy.mean(),
        f"{meter}_marginal_entropy": divergence.entropy(marginal.mean(axis=0)),
        f"{meter}_usage": meters.usage(wins.sum(axis=0)),
    }
    return jax.lax.stop_gradient((likeliest.T, look))


def _reconstruction(predicted, target):
    """("pixel" or "code", its terms)."""
    given = predicted is not None and target is not None
    arguments.require(given, "one of reconstruction and target", None, "given, as the other is")
    arguments.require_shape("reconstruction", predicted, (None, None, None), "[B, n, c]")
    predicted, target = jnp.asarray(predicted), jnp.asarray(target)
    predicted = predicted.astype(jnp.promote_types(predicted.dtype, jnp.float32))
    if jnp.issubdtype(target.dtype, jnp.integer):
        arguments.require_shape(
            "target",
            target,
            predicted.shape[:2],
            f"codes {predicted.shape[:2]} as the reconstruction",
        )
        log_p = jax.nn.log_softmax(predicted, axis=-1)
        # A code outside 0 .. K - 1 (an image that is not finite has none) gives NaN.
        picked = jnp.take_along_axis(
            log_p, target[..., None], axis=-1, mode="fill", fill_value=jnp.nan
        )
        right = jnp.argmax(predicted, axis=-1) == target
        return "code", {
            "reconstruction_loss": -picked.mean(),
            "code_accuracy": right.astype(jnp.float32).mean(),
        }
    arguments.require_shape(
        "target",
        target,
        predicted.shape,
        f"pixels {predicted.shape} as the reconstruction, or codes",
    )
    by_image = jnp.square(predicted - target.astype(predicted.dtype)).mean(axis=(1, 2))
    psnr = -10 * jnp.log10(jnp.maximum(jax.lax.stop_gradient(by_image), 1e-10))
    return "pixel", {"reconstruction_loss": by_image.mean(), "psnr": psnr.mean()}
