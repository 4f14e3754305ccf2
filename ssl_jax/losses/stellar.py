"""STELLAR: sparse tokens that rebuild the image, agree with balanced prototypes, and stay the same
across views.

Source: "Learning Sparse Visual Representations via Spatial-Semantic Factorization" (STELLAR), eq. 3
to 6; what the text leaves open (temperatures, weights, the class token's terms, KoLeo) follows the
official code.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from ssl_jax import ops
from ssl_jax.losses import meters
from ssl_jax.ops import arguments, devices, numerics
from ssl_jax.ops.checked import Count, Number, Positive, checked

WEIGHTS = {"cluster": 1.0, "align": 1.0, "koleo": 0.1}  # a2, a3, a4 of eq. 6
RECONSTRUCTION = {"pixel": 10.0, "code": 0.05}  # a1


class Tokens(NamedTuple):
    """Tokens of B images before balanced prototypes: the sparse ones, or the class token (r = 1).

    student: [B, r, e], embeddings of the main view, or None where only the teacher sees it.
    prototypes: [K, e]; logits are the inner products with these (`numerics.product`). None:
      student and views are logits already, e = K.
    teacher: [B, s, K], a teacher's logits: the targets come from these instead of the student's.
    matches: int [B, r], the teacher's token of each token of the main view; needed with both.
    views: {name: (embeddings [B, V, r', e], int [B, V, r'])} of other views, with the target token
      of each of their tokens (`ops.align_sets`).
    """

    student: Any = None
    prototypes: Any = None
    teacher: Any = None
    matches: Any = None
    views: dict = {}


class Targets(NamedTuple):
    """Balanced targets of tokens, not held: row j is softmax(scores[j] / temperature + potentials).

    scores: [B, s, K], constant. potentials: [K] of `ops.sinkhorn_potentials`.
    """

    scores: jax.Array
    potentials: jax.Array
    temperature: Any


def stellar(
    tokens: Tokens | None = None,
    cls: Tokens | None = None,
    *,
    embeddings: Sequence[Float[Array, "*b r d"]] = (),
    rebuilt: tuple | None = None,
    student_temperature: Number = 0.12,
    teacher_temperature: Number = 0.06,
    num_iters: int = 3,
    weights: dict[str, float] | None = None,
) -> dict[str, jax.Array]:
    """Reconstruction, clustering, set alignment and KoLeo of a batch of images (eq. 6).

        L = a1 L_rec + a2 (L_clu + L_clu_cls) + a3 (L_align + L_align_cls + L_local_cls)
            + a4 (KoLeo(S) + KoLeo(S'))

    L_clu, L_align and the terms of the class token are those of `balanced_tokens`, L_rec is that of
    `reconstruction`, KoLeo the mean of `ops.koleo` over tokens, with neighbours within the same
    view of the same image. Every part may be left out.

    Args:
      tokens: `Tokens`, the sparse ones, with the view "align" (masked views).
      cls: `Tokens`, the class token, with the views "align" and "local" (small crops).
      embeddings: the encoder's sparse tokens [B, r, d] of the main view, and [B, V, r', d] of the
        masked views if there are any; for KoLeo.
      rebuilt: (predicted, target) of `reconstruction`.
      student_temperature: of the predictions, > 0, a number or a traced scalar.
      teacher_temperature: of the targets, a teacher's or the student's own, likewise.
      num_iters: of Sinkhorn-Knopp.
      weights: {"reconstruction": a1, "cluster": a2, "align": a3, "koleo": a4}; what it lacks is as
        published: 10 for pixels and .05 for codes, 1, 1, .1. A term of weight 0 is still reported.

    Returns:
      dict of scalars: loss, and of the parts handed in
        reconstruction_loss, and psnr or code_accuracy (see `reconstruction`);
        cluster_loss, align_loss, match_agreement, token_teacher_entropy, token_marginal_entropy,
          token_usage of the sparse tokens, and cls_cluster_loss, cls_align_loss, cls_local_loss,
          cls_agreement, cls_teacher_entropy ... of the class token (see `balanced_tokens`);
        koleo, masked_koleo.

    Raises:
      ValueError: shapes that do not fit, a part without what it needs, nothing to learn from,
        temperatures <= 0 (where known).

    Example:
      >>> import jax.numpy as jnp
      >>> sparse = jnp.eye(4)[None, :2]  # one image, two tokens, four prototypes
      >>> terms = stellar(Tokens(jnp.zeros((1, 2, 4))), embeddings=(sparse,))
      >>> print(terms["cluster_loss"].round(4), terms["koleo"].round(4))  # log 4 and log(2) / 2
      1.3863 0.3466

    Reference: STELLAR section 3, appendix C.1.
    """
    weights = {**WEIGHTS, **(weights or {})}
    unknown = ", ".join(sorted(set(weights) - {"reconstruction", *WEIGHTS}))
    names = "reconstruction, cluster, align or koleo"
    arguments.require(not unknown, "a key of weights", unknown, names)
    settings: dict[str, Any] = dict(
        student_temperature=student_temperature,
        teacher_temperature=teacher_temperature,
        num_iters=num_iters,
    )
    terms: dict[str, jax.Array] = {}
    sums: dict[str, jax.Array] = {}

    def add(weight, name, value):
        terms[name] = value
        sums[weight] = sums.get(weight, 0) + value

    for name, level in (("token", tokens), ("cls", cls)):
        if level is None:
            continue
        prefix = "" if name == "token" else "cls_"
        for term, value in balanced_tokens(level, name=name, **settings).items():
            if term.endswith("_loss"):
                add("cluster" if term == "cluster_loss" else "align", prefix + term, value)
            elif term == "agreement":
                terms["match_agreement" if name == "token" else "cls_agreement"] = value
            else:
                terms[f"{name}_{term}"] = value
    for name, sparse in zip(("koleo", "masked_koleo"), embeddings):
        add("koleo", name, ops.koleo(sparse).mean())
    if rebuilt is not None:
        parts = reconstruction(*rebuilt)
        kind = "pixel" if "psnr" in parts else "code"
        weights.setdefault("reconstruction", RECONSTRUCTION[kind])
        add("reconstruction", "reconstruction_loss", parts.pop("reconstruction_loss"))
        terms |= parts
    expected = "at least one of tokens, embeddings or a reconstruction"
    arguments.require(bool(sums), "the input", "empty", expected)
    # A weight of exactly 0 takes its terms out, so that one that overflows cannot turn the sum into
    # NaN.
    counted = [weights[name] * value for name, value in sums.items() if not _is_zero(weights[name])]
    return {"loss": sum(counted, start=jnp.zeros_like(next(iter(sums.values())))), **terms}


@checked
def balanced_tokens(
    tokens: Tokens,
    *,
    student_temperature: Positive,
    teacher_temperature: Positive,
    num_iters: Count = 3,
    name: str = "token",
) -> dict[str, jax.Array]:
    """Clustering of tokens, and alignment of the tokens of other views with them (eq. 4 and 5).

    With H(q, l) = - sum_k q_k log softmax(l / student_temperature)_k and balanced targets q of all
    tokens of the batch at once (`balanced_targets`, of the teacher's logits if there are any):

        L_clu   = mean over B, r     of H(q[j], student_logits[j])          (teacher: q[matches[j]])
        L_align = mean over B, V, r' of H(q[matches[j]], view_logits[j])

    Views run one after another, and their logits are recomputed for the gradient: with prototypes
    the largest arrays are a few [B, r, K].

    Args:
      tokens: see `Tokens`.
      student_temperature, teacher_temperature: > 0, numbers or traced scalars.
      num_iters: of Sinkhorn-Knopp.
      name: of the tokens, in errors.

    Returns:
      dict of scalars: cluster_loss (with a student); NAME_loss of each view; agreement, the share
      of the tokens of the view "align" whose likeliest prototype is their target's;
      teacher_entropy, marginal_entropy and usage as in `losses.assignment_meters`. Meters have no
      gradient.

    Raises:
      ValueError: shapes that do not fit, no targets, tokens without their matches.
    """
    _check_tokens(name, tokens)
    student = None if tokens.student is None else _logits(tokens.student, tokens.prototypes)
    scores: Any = student if tokens.teacher is None else _logits(tokens.teacher, None)
    targets = balanced_targets(scores, temperature=teacher_temperature, num_iters=num_iters)
    terms, (likeliest, look) = {}, _look(targets)
    if student is not None:
        matches = None if tokens.teacher is None else tokens.matches
        terms["cluster_loss"] = _cross_entropies(
            targets, student, matches, student_temperature
        ).mean()

    shared = (tokens.prototypes, targets.potentials, targets.temperature, student_temperature)
    for kind, (x, index) in tokens.views.items():
        per_image = (jnp.asarray(x), jnp.asarray(index), targets.scores, likeliest)
        # One device, one share of the images: else the gradient by the prototypes is added up over
        # the devices for every view.
        loss, same = devices.summed(_sum_over_views, per_image, shared)
        terms[f"{kind}_loss"] = loss / per_image[1].size
        if kind == "align":
            look["agreement"] = same / per_image[1].size
    return terms | look


def _sum_over_views(x, index, scores, likeliest, prototypes, potentials, by_target, temperature):
    """H of every token of embeddings x [B, V, r', e] added up, and how many have their target's
    likeliest prototype, [B, s]. by_target: its temperature."""
    targets = Targets(scores, potentials, by_target)

    @jax.checkpoint
    def view(arrays):
        logits, index = _logits(arrays[0], prototypes), arrays[1]
        same = jnp.argmax(logits, axis=-1) == jnp.take_along_axis(likeliest, index, axis=-1)
        losses = _cross_entropies(targets, logits, index, temperature)
        return losses.sum(), same.astype(jnp.float32).sum()

    by_view, same = jax.lax.map(view, (jnp.moveaxis(x, 1, 0), jnp.moveaxis(index, 1, 0)))
    return by_view.sum(), same.sum()


@checked
def balanced_targets(
    scores: Float[Array, "B s K"], *, temperature: Positive, num_iters: Count = 3
) -> Targets:
    """Sinkhorn targets of all tokens of a batch at once, as K potentials; constant.

    Args:
      scores: [B, s, K]. temperature: > 0. num_iters: of Sinkhorn-Knopp.

    Raises:
      ValueError: another shape, temperature <= 0 (where known), num_iters < 1.
    """
    scores = jax.lax.stop_gradient(scores)
    rows = scores.reshape(-1, scores.shape[-1])
    potentials = ops.sinkhorn_potentials(rows, temperature=temperature, num_iters=num_iters)
    return Targets(scores, potentials, temperature)


@checked
def reconstruction(
    predicted: Float[Array, "B n c"], target: Float[Array, "B n c"] | Integer[Array, "B n"]
) -> dict[str, jax.Array]:
    """How well an image is rebuilt (eq. 3): squared error of pixels, or cross-entropy of codes.

    Args:
      predicted: [B, n, c], pixels in [0, 1], or logits of c codes.
      target: [B, n, c] pixels, or int [B, n] codes; no gradient reaches it.

    Returns:
      dict of scalars: reconstruction_loss, and psnr (dB, mean over images) or code_accuracy. A code
      outside 0 .. c - 1 (an image that is not finite has none) gives NaN.

    Raises:
      ValueError: shapes that do not fit.
    """
    predicted = numerics.wide(predicted)
    if jnp.issubdtype(target.dtype, jnp.integer):
        log_p = jax.nn.log_softmax(predicted, axis=-1)
        picked = jnp.take_along_axis(log_p, target[..., None], axis=-1, mode="clip")[..., 0]
        picked = jnp.where((target >= 0) & (target < predicted.shape[-1]), picked, jnp.nan)
        right = jnp.argmax(predicted, axis=-1) == target
        return {
            "reconstruction_loss": -picked.mean(),
            "code_accuracy": right.astype(jnp.float32).mean(),
        }
    target = jax.lax.stop_gradient(target.astype(predicted.dtype))
    by_image = jnp.square(predicted - target).mean(axis=(1, 2))
    psnr = -10 * jnp.log10(jnp.maximum(jax.lax.stop_gradient(by_image), 1e-10))
    return {"reconstruction_loss": by_image.mean(), "psnr": psnr.mean()}


def class_tokens(
    student: Float[Array, "B e"] | None,
    prototypes: Float[Array, "K e"] | None,
    teacher: Float[Array, "B K"] | None = None,
    views: Mapping[str, Float[Array, "B V e"]] | tuple[()] = (),
) -> Tokens:
    """Class tokens as sets of one token, which match each other.

    Args:
      student: [B, e]. prototypes: [K, e]. teacher: logits [B, K] or None.
      views: {name: [B, V, e]}.
    """

    def one(x):
        return None if x is None else jnp.asarray(x)[..., None, :]

    def only(x):
        return jnp.zeros((*jnp.shape(x)[:-1], 1), jnp.int32)

    return Tokens(
        student=one(student),
        prototypes=prototypes,
        teacher=one(teacher),
        matches=None if student is None else only(student),
        views={name: (one(x), only(x)) for name, x in dict(views).items()},
    )


@checked
def match_meters(alignment: ops.Alignment) -> dict[str, jax.Array]:
    """What `ops.align_sets` says, index [..., r] and cost [..., r, s], as scalars.

    match_cost: mean distance of matched tokens. match_contrast: that over the mean distance of all
    pairs; 1 = the matching is blind. match_distinct: share of the targets that are matched at all,
    of those that could be; 1 = no two tokens share a target.
    """
    index, cost = alignment.index, alignment.cost
    count, size = cost.shape[-2:]
    matched = jnp.take_along_axis(cost, index[..., None], axis=-1).mean()
    hit = jax.nn.one_hot(index, size, dtype=bool).any(axis=-2).sum(axis=-1).astype(cost.dtype)
    return {
        "match_cost": matched,
        "match_contrast": matched / jnp.maximum(cost.mean(), 1e-12),
        "match_distinct": (hit / min(count, size)).mean(),
    }


def _is_zero(weight) -> bool:
    return arguments.is_concrete(weight) and float(weight) == 0


def _logits(x, prototypes):
    """Logits of embeddings [..., e] with prototypes [K, e]; logits themselves if there are none."""
    x = numerics.wide(x)
    if prototypes is None:
        return x
    return numerics.product("...e,ke->...k", x, prototypes.astype(x.dtype))


def _cross_entropies(targets: Targets, logits, index, temperature):
    """H of every token; `index` is the target of each, None: its own."""
    return ops.sinkhorn_cross_entropy(
        targets.scores,
        logits,
        potentials=targets.potentials,
        index=index,
        target_temperature=targets.temperature,
        temperature=temperature,
    )


def _look(targets: Targets):
    """Index of the likeliest prototype of every target [B, s], and the meters of all targets."""

    def token(scores):  # [B, K]: one token at a time, so that the targets of all are never held
        sharp = numerics.sharpen(scores, targets.temperature)
        log_q = jax.nn.log_softmax(sharp + targets.potentials[None], axis=-1)
        return {
            "entropy": ops.entropy(log_probs=log_q).mean(),
            "marginal": jnp.exp(log_q).mean(axis=0),
            "likeliest": jnp.argmax(log_q, axis=-1),
            "wins": meters.wins(log_q),
        }

    by_token = jax.lax.map(token, jnp.moveaxis(targets.scores, 1, 0))
    look = {
        "teacher_entropy": by_token["entropy"].mean(),
        "marginal_entropy": ops.entropy(by_token["marginal"].mean(axis=0)),
        "usage": meters.usage(by_token["wins"].sum(axis=0)),
    }
    return jax.lax.stop_gradient((by_token["likeliest"].T, look))


def _check_tokens(name: str, tokens: Tokens) -> None:
    """Refuses tokens that do not fit each other, by name. Raises ValueError."""
    student, prototypes, teacher, matches, views = tokens
    if student is None and teacher is None:
        expected = "those of the main view or of a teacher"
        arguments.require(False, f"the targets of the {name} views", "absent", expected)
    width = None if prototypes is None else jnp.shape(prototypes)[-1]
    if student is not None:
        kind = "logits [B, r, K]" if prototypes is None else "embeddings [B, r, e]"
        arguments.require_shape(f"{name}_logits", student, (None, None, width), kind)
    scores = jnp.shape(student if teacher is None else teacher)
    classes = jnp.shape(prototypes)[0] if teacher is None and width else scores[-1]
    arguments.require(
        min(scores) > 0, f"the shape of the {name} targets", scores, "without an empty axis"
    )
    if student is not None and teacher is not None:
        shape = (*jnp.shape(student)[:2], jnp.shape(student if width is None else prototypes)[-1])
        classes = shape[2] if width is None else jnp.shape(prototypes)[0]
        fits = shape[0] == scores[0] and classes == scores[2]
        expected = f"[{scores[0]}, r, {scores[2]}] as the teacher's"
        arguments.require(fits, f"the shape of {name}_logits", (*shape[:2], classes), expected)
        expected = "given, because the targets are a teacher's"
        arguments.require(matches is not None, f"{name}_matches", None, expected)
    for kind, (x, index) in views.items():
        expected = "given, one target token for each token of a masked view"
        arguments.require(index is not None, "matches", None, expected)
        label = f"{kind} {name} logits"
        meaning = f"[{scores[0]}, V, r', .]"
        arguments.require_shape(label, x, (scores[0], None, None, None), meaning)
        shape = jnp.shape(x)
        expected = f"{shape[:-1]} as the logits of the masked views"
        arguments.require_shape("matches", index, shape[:-1], expected)
        full = jnp.size(x) > 0
        arguments.require(full, f"the shape of the {label}", shape, "without an empty axis")
