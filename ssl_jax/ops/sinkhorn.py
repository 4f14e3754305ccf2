"""Sinkhorn-Knopp clustering in potential form: balanced soft assignments, used as targets.

Notation: n samples (rows), K prototypes (columns), scores S [n, K], temperature T. One iteration
divides every column of exp(S / T) by its sum over the samples, then every row by its sum over the
prototypes. Because a row step undoes any factor of its row, the state of the iteration is one
number per prototype, the potential h [K]:

    h_1 = -log sum_n exp(S / T),   h_{t+1} = h_t - log sum_n softmax_K(S / T + h_t),   assignments =
    softmax_K(S / T + h).

That is the published iteration without its 1e-8, in exact arithmetic. It cannot overflow or divide
by zero at any scale: after a column step the largest entry of a column is at least 1 / n and every
entry at most 1, hence the next column sum is at least 1 / (n K).

Sources: "Learning Sparse Visual Representations via Spatial-Semantic Factorization" (STELLAR) eq.
4; Caron et al. 2020 (SwAV); Darcet et al. 2025 (CAPI).
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from ssl_jax.ops import devices
from ssl_jax.ops import passes as over
from ssl_jax.ops.arguments import require, require_inside
from ssl_jax.ops.checked import Count, Positive, checked
from ssl_jax.ops.numerics import float_type, product, sharpen, softmax_parts

# Scores of a device in one pass over rows: on CPUs what stays in the cache, elsewhere what keeps it
# busy; a GPU takes the longer, the more kernels there are.
_ENTRIES = {"cpu": 2**20, "tpu": 2**24, "gpu": 2**27}


@checked
def sinkhorn_knopp(
    scores: Float[Array, "*b n K"],
    *,
    temperature: Positive,
    num_iters: Count = 3,
    where: Bool[Array, "*b n"] | None = None,
) -> Float[Array, "*b n K"]:
    """Balanced soft assignments of samples to prototypes.

    Q = exp(S / T); repeat: Q <- Q / (column sums), Q <- Q / (row sums). Computed from the
    potentials, see `sinkhorn_potentials`. It ends on rows: each sums to 1 exactly, while the column
    sums approach n / K only with many iterations. Adding a constant to a column of the scores
    changes nothing.

    Args:
      scores: S [..., n, K], finite; any float type (computed in float32 or wider). Leading axes are
        separate problems: all samples that are to be balanced against each other belong on the axis
        n.
      temperature: T > 0, a number or a traced scalar.
      num_iters: number of iterations, at least 1; 3 in the papers.
      where: bool [..., n], samples that count; None: all. The others get an assignment of zeros.

    Returns:
      [..., n, K], float32 or wider, >= 0, rows sum to 1. A constant: no gradient passes.

    Raises:
      ValueError: shapes that do not fit, T <= 0 (where its value is known), num_iters < 1.

    Example:
      >>> import jax.numpy as jnp
      >>> # both samples lean to the first prototype or to none
      >>> scores = jnp.array([[2.0, 1.0], [1.0, 1.0]])
      >>> # now they share the two
      >>> print(jnp.array_str(sinkhorn_knopp(scores, temperature=1.0, num_iters=20), precision=3))
      [[0.622 0.378]
       [0.378 0.622]]

    Reference: STELLAR eq. 4; SwAV (Caron et al. 2020) section 3.1; CAPI (Darcet et al. 2025).
    """
    potentials = sinkhorn_potentials(
        scores, temperature=temperature, num_iters=num_iters, where=where
    )
    scores = sharpen(*jax.lax.stop_gradient((scores, temperature)))
    if where is None:
        return jax.nn.softmax(scores + potentials[..., None, :], axis=-1)
    keep = where[..., None]
    scores = jnp.where(keep, scores, 0)
    return jnp.where(keep, jax.nn.softmax(scores + potentials[..., None, :], axis=-1), 0)


@checked
def sinkhorn_potentials(
    scores: Float[Array, "*b n K"],
    *,
    temperature: Positive,
    num_iters: Count = 3,
    where: Bool[Array, "*b n"] | None = None,
    chunk: Count | None = None,
) -> Float[Array, "*b K"]:
    """The potentials h [K] of Sinkhorn-Knopp: the assignments are softmax(S / T + h).

    h_1 = -log sum_n exp(S / T); h_{t+1} = h_t - log sum_n softmax_K(S / T + h_t). Reads the scores
    once per iteration, in chunks of rows, and holds only numbers per prototype between them. Rows
    of one chunk are spread over all rows, so that a sharded sample axis keeps all devices busy;
    across devices an iteration needs one sum of K numbers (the first also a maximum).

    Args:
      scores: S [..., n, K], finite; any float type (computed in float32 or wider). Leading axes are
        separate problems.
      temperature: T > 0, a number or a traced scalar.
      num_iters: number of iterations, at least 1.
      where: bool [..., n], samples that count; None: all.
      chunk: samples per pass, about; None: what suits the device. Where n has no divisor near the
        number of passes, the scores are padded, which copies them.

    Returns:
      h [..., K], float32 or wider, finite for finite scores; 0 where no sample counts. A constant:
      no gradient passes.

    Raises:
      ValueError: shapes that do not fit, T <= 0 (where its value is known), num_iters or chunk < 1.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> scores = jnp.array([[2.0, 1.0], [1.0, 1.0]])
      >>> h = sinkhorn_potentials(scores, temperature=1.0, num_iters=20)
      >>> print(jnp.array_str(jax.nn.softmax(scores + h), precision=3))
      [[0.622 0.378]
       [0.378 0.622]]

    Reference: STELLAR eq. 4, as potentials of the entropic transport problem (Cuturi 2013).
    """
    scores, temperature = jax.lax.stop_gradient((scores, temperature))
    *batch, count, width = scores.shape
    flat = scores.reshape(math.prod(batch), count, width)
    if where is not None:
        where = where.reshape(flat.shape[:2])
    passes, padding = _passes(count, flat.shape[0] * width, chunk)
    if padding:
        where = jnp.ones(flat.shape[:2], bool) if where is None else where
        flat, where = over.pad(flat, padding, 1), over.pad(where, padding, 1)
    like, shape = (flat, where, temperature), flat.shape
    scores_of = functools.partial(_rows, flat, passes=passes)
    h = _potentials(scores_of, shape, where, temperature, num_iters, passes, like)
    return h.reshape(*batch, width)


@checked
def sinkhorn_potentials_fused(
    embeddings: Float[Array, "n d"],
    prototypes: Float[Array, "d K"],
    *,
    temperature: Positive,
    num_iters: Count = 3,
    where: Bool[Array, " n"] | None = None,
    chunk: Count | None = None,
) -> Float[Array, " K"]:
    """`sinkhorn_potentials` of the scores embeddings @ prototypes, which are never held.

    Each iteration multiplies anew, in chunks of rows: less traffic on a GPU than storing the scores
    and reading them, but two to three times as long on a CPU.

    Args:
      embeddings: [n, d], finite; any float type, in which they are multiplied.
      prototypes: [d, K].
      temperature: T > 0, a number or a traced scalar.
      num_iters: number of iterations, at least 1.
      where: bool [n], samples that count; None: all.
      chunk: samples per pass, about; None: what suits the device.

    Returns:
      h [K], float32 or wider. A constant: no gradient passes.

    Raises:
      ValueError: as `sinkhorn_potentials`.

    Example:
      >>> import jax.numpy as jnp
      >>> rows = jnp.array([[2.0, 1.0], [1.0, 1.0]])
      >>> same = sinkhorn_potentials(rows, temperature=1.0)
      >>> print((sinkhorn_potentials_fused(rows, jnp.eye(2), temperature=1.0) - same).round(5))
      [0. 0.]

    Reference: STELLAR eq. 4; DINOv2 (Oquab et al. 2023), section 4.
    """
    embeddings, prototypes, temperature = jax.lax.stop_gradient(
        (embeddings, prototypes, temperature)
    )
    count, width = embeddings.shape[0], prototypes.shape[1]
    passes, padding = _passes(count, width, chunk)
    if padding:
        where = jnp.ones(count, bool) if where is None else where
        embeddings, where = over.pad(embeddings, padding), over.pad(where, padding)
    rows, where = embeddings[None], None if where is None else where[None]
    dtype = float_type(embeddings, prototypes)
    matrix = prototypes.astype(embeddings.dtype)

    def scores_of(i):
        return product("bnd,dk->bnk", _rows(rows, i, passes), matrix, out=dtype)

    shape, like = (1, count + padding, width), (rows, matrix, where, temperature)
    return _potentials(scores_of, shape, where, temperature, num_iters, passes, like)[0]


@checked(empty="q")
def sinkhorn_cross_entropy(
    scores: Float[Array, "*b n K"],
    logits: Float[Array, "*b q K"],
    *,
    target_temperature: Positive,
    temperature: Positive,
    num_iters: Count = 3,
    potentials: Float[Array, " K"] | Float[Array, "*b K"] | None = None,
    index: Integer[Array, "*b q"] | None = None,
    where: Bool[Array, "*b n"] | None = None,
    chunk: Count | None = None,
) -> Float[Array, "*b q"]:
    """Cross-entropy of predictions with Sinkhorn-Knopp targets, per row; targets are never held.

    loss_i = - sum_k q_k log softmax(logits_i / tau)_k with q = softmax(S_index(i) / T + h), the
    target. Fused: targets and predictions exist for one chunk of rows at a time, in the gradient
    too, and only h [K] and five numbers per row are kept. For the same targets in many views
    compute `sinkhorn_potentials` once and pass them.

    Args:
      scores: S [..., n, K], finite; any float type (computed in float32 or wider). A constant.
      logits: [..., q, K] with the leading axes of scores; q = n unless `index` is given. The scores
        themselves may be used. -inf is allowed where the target is 0.
      target_temperature: T > 0 of the targets, a number or a traced scalar. A constant.
      temperature: tau > 0 of the predictions, a number or a traced scalar.
      num_iters: number of Sinkhorn iterations, at least 1; unused if potentials are given.
      potentials: h of `sinkhorn_potentials`, [K] for all leading axes together or [..., K]; None:
        computed from scores, each leading axis by itself. To balance over leading axes pass
        potentials of scores reshaped to [samples, K].
      index: integers [..., q] in [0, n): the row
        of scores that is the target of a row of logits. None: the same row. Keep leading axes
        (images) for matches within them: then nothing is gathered across a sharded batch.
      where: bool [..., n], samples that count; None: all. The loss of a row whose target does not
        count is 0.
      chunk: rows of logits per pass, about; None: what suits the device.

    Returns:
      [..., q] in nats, float32 or wider, >= the entropy of the target. Reverse-mode gradients reach
      logits and temperature only.

    Raises:
      ValueError: shapes that do not fit, a temperature <= 0 or an index outside (where known),
      num_iters or chunk < 1.

    Example:
      >>> import jax.numpy as jnp
      >>> scores = jnp.array([[2.0, 1.0], [1.0, 1.0]])
      >>> loss = sinkhorn_cross_entropy(
      ...     scores, jnp.zeros((2, 2)), target_temperature=0.06, temperature=0.12
      ... )
      >>> print(loss.round(4))  # a uniform prediction costs log 2
      [0.6931 0.6931]

    Reference: STELLAR eq. 4 and the clustering losses that follow it; DINO eq. 2.
    """
    *batch, count, width = scores.shape
    rows = logits.shape[-2]
    if index is None:
        require(rows == count, "the number of rows of logits", rows, f"{count} as scores")
    else:
        require_inside("an entry of index", index, "scores", count)
    if potentials is None:
        potentials = sinkhorn_potentials(
            scores, temperature=target_temperature, num_iters=num_iters, where=where, chunk=chunk
        )

    lead = math.prod(batch)
    if index is None and potentials.ndim == 1:  # all rows are alike: leading axes join them
        lead, count, rows = 1, lead * count, lead * rows
    scores, flat = scores.reshape(lead, count, width), logits.reshape(lead, rows, width)
    potentials = potentials.reshape(-1, 1, width)
    if where is not None:
        where = where.reshape(scores.shape[:2])
    if index is not None:
        index = index.reshape(flat.shape[:2])
    passes, padding = _passes(rows, lead * width, chunk)
    if padding:
        flat, index = over.pad(flat, padding, 1), over.pad(index, padding, 1)
        if index is None:
            scores, where = over.pad(scores, padding, 1), over.pad(where, padding, 1)
    dtype = float_type(scores, flat)
    temperature = jnp.asarray(temperature).astype(dtype)
    targets = (
        scores,
        potentials.astype(dtype),
        jnp.asarray(target_temperature).astype(dtype),
        index,
        where,
    )
    arguments = flat, temperature, targets
    losses = _fused(passes, *devices.varying(arguments, arguments))
    return losses[:, :rows].reshape(logits.shape[:-1])


def _passes(rows: int, width: int, chunk: int | None) -> tuple[int, int]:
    """Number of passes over rows of `width` numbers, and by how many rows to pad them."""
    # Of each device, so that all have rows in every pass: else rows would be sent to and fro.
    entries = _ENTRIES.get(devices.platform(), _ENTRIES["tpu"]) * devices.count()
    passes, per_pass = over.divide(rows, chunk or max(1, entries // max(width, 1)))
    return passes, passes * per_pass - rows


def _rows(x, i, passes: int):
    """The rows of pass i of x [b, n, ...]."""
    if passes == 1:
        return x
    return _narrowly(lambda x, i: over.take(x, i, passes, axis=1), x, i)


def _narrowly(pick, x, *at):
    """pick(x, *at), where `pick` moves numbers only and `at` are integers that change with the
    pass.

    XLA for CPUs slices 16-bit floats as float32 and then widens all of x ahead of the loop: a copy
    of twice its size. As integers, tied to the pass, they stay as they are.
    """
    if not _is_narrow(x.dtype):
        return pick(x, *at)
    return _as_integers(pick, x, *map(jnp.asarray, at))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _as_integers(pick, x, *at):
    x, _ = jax.lax.optimization_barrier((x, at))
    moved = pick(jax.lax.bitcast_convert_type(x, jnp.uint16), *at)
    return jax.lax.bitcast_convert_type(moved, x.dtype)


@_as_integers.defjvp
def _as_integers_jvp(pick, primals, tangents):
    """Integers have no derivative."""
    return _as_integers(pick, *primals), pick(tangents[0], *primals[1:])


def _is_narrow(dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize == 2


def _loop(passes: int, body, start):
    """Folds `body(i, carry)` over the passes."""
    return body(0, start) if passes == 1 else jax.lax.fori_loop(0, passes, body, start)


def _potentials(scores_of, shape, where, temperature, num_iters: int, passes: int, like):
    """h [b, K] of scores [b, n, K] = `shape`, of which scores_of(i) are the rows of pass i. like:
    the arrays that these are made of."""
    lead, count, width = shape
    dtype = float_type(jax.eval_shape(scores_of, 0))
    # Partial sums, one per device of the mesh in context, so that a sharded sample axis is reduced
    # across devices only after the loop.
    parts = math.gcd(count // passes, devices.count())

    def block(i):
        x = sharpen(scores_of(i), temperature)
        keep = None if where is None else _rows(where, i, passes)[..., None]
        return x if keep is None else jnp.where(keep, x, 0), keep

    def by_part(x):
        return x.reshape(lead, parts, x.shape[1] // parts, x.shape[-1])

    def column_sums(terms, weight):
        weight = jnp.broadcast_to(weight, (*terms.shape[:-1], 1)).astype(dtype)
        if devices.platform() == "gpu":  # a product would read the terms from memory
            return (terms * weight).sum(axis=2)
        # As a product with a vector: faster than a reduction over rows.
        return product("bprk,bpr->bpk", terms, weight[..., 0])

    lowest = jnp.finfo(dtype).min

    def column_lse(i, carry):
        # The maximum runs per column: with one for all, columns far below it would vanish.
        top, total = carry
        x, keep = block(i)
        x = x if keep is None else jnp.where(keep, x, lowest)
        higher = jnp.maximum(top, jnp.max(by_part(x), axis=2))
        terms = jnp.exp(by_part(x) - higher[:, :, None])
        return higher, total * jnp.exp(top - higher) + column_sums(
            terms, 1 if keep is None else by_part(keep)
        )

    zeros = devices.varying(jnp.zeros((lead, parts, width), dtype), like)
    top, total = _loop(passes, column_lse, (jnp.full_like(zeros, lowest), zeros))
    highest = jnp.max(top, axis=1)
    total = jnp.sum(total * jnp.exp(top - highest[:, None]), axis=1)
    # No row counts where a total is 0. NaN stays: one bad score must not pass for balanced targets.
    h = jnp.where(total == 0, 0, -highest - jnp.log(jnp.where(total == 0, 1, total)))

    def iterate(_, h):
        def prototype_use(i, carry):
            x, keep = block(i)
            q, row_sum, _ = softmax_parts(x + h[:, None])
            share = 1 / row_sum if keep is None else jnp.where(keep, 1 / row_sum, 0)
            return carry + column_sums(by_part(q), by_part(share))

        total = jnp.sum(_loop(passes, prototype_use, zeros), axis=1)
        return h - jnp.log(jnp.where(total == 0, 1, total))

    return jax.lax.fori_loop(0, num_iters - 1, iterate, h)


def _target_logits(targets, i, passes: int):
    """S / T + h for the targets of one chunk of rows, and which of them count."""
    scores, potentials, temperature, index, where = targets
    if index is None:
        picked = _rows(scores, i, passes)
        keep = None if where is None else _rows(where, i, passes)
    else:
        index = _rows(index, i, passes)
        picked = _narrowly(
            lambda x, index: jnp.take_along_axis(x, index[..., None], axis=1), scores, index
        )
        keep = None if where is None else jnp.take_along_axis(where, index, axis=1)
    x = sharpen(picked, temperature)
    return (x if keep is None else jnp.where(keep[..., None], x, 0)) + potentials, keep


def _fused_forward(passes: int, logits, temperature, targets):
    lead, count, _ = logits.shape

    def chunk_loss(i):
        x = sharpen(_rows(logits, i, passes), temperature)
        _, x_sum, x_top = softmax_parts(x)
        s, keep = _target_logits(targets, i, passes)
        q, q_sum, q_top = softmax_parts(s)
        # log-sum-exp minus dot product, as a sum of terms >= 0
        loss = (
            jnp.log(x_sum)
            + jnp.sum(jnp.where(q > 0, q * (x_top - x), 0), axis=-1, keepdims=True) / q_sum
        )
        loss = loss if keep is None else jnp.where(keep[..., None], loss, 0)
        # Maxima and logarithms apart: their sum would lose the small one.
        return jnp.concatenate([loss, x_top, jnp.log(x_sum), q_top, jnp.log(q_sum)], axis=-1)

    if passes == 1:
        rows = chunk_loss(0)
    else:
        rows = jax.lax.map(chunk_loss, jnp.arange(passes))  # [passes, b, n / passes, 5]
        rows = jnp.moveaxis(rows, 0, 2).reshape(lead, count, 5)
    return rows[..., 0], (logits, temperature, targets, rows[..., 1:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(passes: int, logits, temperature, targets):
    """Loss [b, n] of logits [b, n, K]; the gradient recomputes targets and predictions chunk by
    chunk.
    """
    return _fused_forward(passes, logits, temperature, targets)[0]


def _fused_backward(passes: int, saved, cotangent):
    return *_gradients(passes, *saved, cotangent), None


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gradients(passes: int, logits, temperature, targets, rows, cotangent):
    """By the logits and by the temperature."""
    narrow = _is_narrow(logits.dtype) and passes > 1
    return _gradients_in(passes, narrow, logits, temperature, targets, rows, cotangent)


@_gradients.defjvp
def _gradients_jvp(passes: int, primals, tangents):
    return jax.jvp(functools.partial(_gradients_in, passes, False), primals, tangents)


def _gradients_in(passes: int, narrow: bool, logits, temperature, targets, rows, cotangent):
    """narrow: floats of 16 bits are stored as integers, see `_narrowly`, and have no derivative."""
    lead, count, width = logits.shape

    def step(i, carry):
        by_logits, by_temperature = carry
        mine = _rows(logits, i, passes)
        x_top, x_log, q_top, q_log = jnp.split(_rows(rows, i, passes), 4, axis=-1)
        s, keep = _target_logits(targets, i, passes)
        weight = _rows(cotangent, i, passes)
        weight = weight if keep is None else jnp.where(keep, weight, 0)
        difference = jnp.exp((sharpen(mine, temperature) - x_top) - x_log) - jnp.exp(
            (s - q_top) - q_log
        )
        by_mine = difference * (weight / temperature)[..., None]
        # x = logits / tau, hence dx / dtau = - logits / tau^2
        through = jnp.sum(jnp.where(by_mine != 0, by_mine * mine.astype(by_mine.dtype), 0))
        by_mine = by_mine.astype(logits.dtype)
        if passes == 1:
            return by_mine, by_temperature - through / temperature
        # Written in place: stacked passes would need a transposed copy.
        if narrow:
            by_mine = jax.lax.bitcast_convert_type(by_mine, by_logits.dtype)
        by_logits = jax.lax.dynamic_update_index_in_dim(by_logits, by_mine, i, axis=2)
        return by_logits, by_temperature - through / temperature

    dtype = jnp.uint16 if narrow else logits.dtype
    start = jnp.zeros((lead, count // passes, passes, width), dtype), jnp.zeros_like(temperature)
    by_logits, by_temperature = _loop(passes, step, devices.varying(start, logits))
    by_logits = by_logits.reshape(logits.shape)
    if narrow:
        by_logits = jax.lax.bitcast_convert_type(by_logits, logits.dtype)
    return by_logits, by_temperature


_fused.defvjp(_fused_forward, _fused_backward)
