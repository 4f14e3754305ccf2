"""STELLAR: an image as a few sparse tokens S ("what") times a localization map L ("where").

The ViT encodes latent queries together with the patches; the encoded queries are S. A softmax over
cosines between patches and tokens gives L. The product Z = L S must reconstruct the image, and the
tokens must agree with balanced prototypes and with the matched tokens of masked views.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ssl_jax import losses, ops
from ssl_jax.methods import base, multicrop
from ssl_jax.methods.stellar.settings import check, defaults
from ssl_jax.methods.stellar.views import view_recipe
from ssl_jax.models import decoder, factorise, heads, tokenizer
from ssl_jax.ops import numerics

__all__ = ["Outputs", "check", "defaults", "make"]


class Outputs(NamedTuple):
    """Outputs of the networks; None if the config does not use them.

    Sparse tokens: tokens [B, r, d], masked_tokens [B, V, r, d], teacher_tokens [B, r, d].
    Embeddings of the heads: token [B, r, e], cls [B, e], masked_token [B, V, r, e], masked_cls
    [B, V, e], local_cls [B, W, e], teacher_token, teacher_cls. Decoder: rebuilt [B, n, c] and its
    target, pixels [B, n, c] or codes [B, n].
    """

    tokens: jax.Array
    masked_tokens: jax.Array | None = None
    teacher_tokens: jax.Array | None = None
    token: jax.Array | None = None
    cls: jax.Array | None = None
    masked_token: jax.Array | None = None
    masked_cls: jax.Array | None = None
    local_cls: jax.Array | None = None
    teacher_token: jax.Array | None = None
    teacher_cls: jax.Array | None = None
    rebuilt: jax.Array | None = None
    target: jax.Array | None = None


def make(config: ConfigDict) -> base.Method:
    """STELLAR with the networks and settings of a resolved config."""
    c, m = config.stellar, config.model
    views = view_recipe(config)
    has_teacher, rebuilds = c.targets == "teacher", c.weights.reconstruction > 0
    clusters, aligns = c.weights.cluster > 0 or c.weights.align > 0, c.weights.align > 0
    kinds = ("token", "cls") if clusters and c.cls else ("token",) if clusters else ()
    backbone = multicrop.encoders(m)
    # Sparse and class tokens have heads of the same form, each with its own parameters.
    head = heads.projection_head(
        m.width, hidden=c.head_hidden, out=c.head_out, layers=2, init_std=m.init_std, dtype=m.dtype
    )
    project = factorise.projections(m.width, dtype=m.dtype)
    goal = tokenizer.target(c.target, m.patch, channels=m.in_channels)
    decode = decoder.decoder(
        m.width,
        goal.width,
        width=c.decoder_width,
        depth=c.decoder_depth,
        heads=c.decoder_heads,
        init_std=m.init_std,
        gelu=m.gelu,
        remat=m.remat,
        attention=m.attention,
        dtype=m.dtype,
    )

    def init(key):
        """Encoder, heads with their prototypes, projections and decoder; no carry."""
        keys = jax.random.split(key, 8)
        params = {"backbone": backbone.student.init(keys[0])}
        for kind, (key_mlp, key_rows) in zip(("token", "cls"), (keys[1:3], keys[3:5])):
            if kind in kinds:
                rows = jax.random.normal(key_rows, (c.prototypes, c.head_out), jnp.float32)
                params[f"{kind}_head"] = {"projection": head.init(key_mlp), "prototypes": rows}
        if rebuilds:
            params |= {"factorise": project.init(keys[5]), "decoder": decode.init(keys[6])}
        return params, None

    def constants():
        """The Fourier matrix G of the decoder's position embeddings, and the tokenizer."""
        return {"fourier": fourier(), **goal.constants(c.tokenizer)} if rebuilds else None

    def constant_shapes():
        return {"fourier": jax.eval_shape(fourier), **goal.shapes} if rebuilds else None

    def fourier():
        key_init, _ = jax.random.split(numerics.key(config.seed))
        return factorise.fourier_matrix(jax.random.split(key_init, 8)[7], c.decoder_width)

    def embed(params, tokens, kind):
        of_kind = tokens.queries if kind == "token" else tokens.cls
        return head.apply(params[f"{kind}_head"]["projection"], of_kind)

    def localize(params, tokens):
        """L [B, n, r]: softmax over tokens of cosines of projected patches and sparse tokens."""
        projected = project.apply(params["factorise"], tokens.patches, tokens.queries)
        return ops.localization(*projected, temperature=c.localization_temperature or None)

    def rebuild(params, fourier, tokens, maps, columns):
        """Decoder output [B, n, c] for Z = L S (eq. 1, 3), differentiable in L and S."""
        latent = factorise.recompose(maps, tokens.queries)
        codes = factorise.fourier_codes(fourier, (latent.shape[1] // columns, columns))
        return decode.apply(params["decoder"], latent, codes)

    def encode(params, teacher, constants, views_of, keys, progress):
        keys = multicrop.split_keys(keys, 3)
        images = views_of["global"].images
        tokens = backbone.student.apply(params["backbone"], images[:, 0], keys=keys[:, 0])
        out = Outputs(tokens.queries, **{kind: embed(params, tokens, kind) for kind in kinds})
        if rebuilds:
            maps, columns = localize(params, tokens), images.shape[-2] // m.patch
            out = out._replace(
                rebuilt=rebuild(params, constants["fourier"], tokens, maps, columns),
                target=goal.encode(constants, jax.lax.stop_gradient(images[:, 0]), dtype=m.dtype),
            )
        if "masked" in views_of:
            tokens = multicrop.encode(
                backbone.student, params["backbone"], views_of["masked"], keys=keys[:, 1]
            )
            of_kind = {f"masked_{kind}": embed(params, tokens, kind) for kind in kinds if aligns}
            out = out._replace(masked_tokens=tokens.queries, **of_kind)
        if "local" in views_of:
            tokens = multicrop.encode(
                backbone.student, params["backbone"], views_of["local"], keys=keys[:, 2]
            )
            out = out._replace(local_cls=embed(params, tokens, "cls"))
        if has_teacher:  # it encodes the other global crop, unmasked
            clean = backbone.teacher.apply(teacher["backbone"], images[:, 1])
            of_kind = {f"teacher_{kind}": embed(teacher, clean, kind) for kind in kinds}
            out = out._replace(
                **jax.lax.stop_gradient({"teacher_tokens": clean.queries, **of_kind})
            )
        return out

    def teacher_logits(teacher, outputs, kind):
        if not has_teacher:
            return None
        rows = teacher[f"{kind}_head"]["prototypes"]
        return numerics.product("...e,ke->...k", getattr(outputs, f"teacher_{kind}"), rows)

    def objective(params, teacher, outputs, carry, key, progress):
        """The loss of eq. 6 over the whole batch, after matching token sets without gradient."""
        o, metrics, views_of = outputs, dict[str, jax.Array](), {}
        solver = dict(
            epsilon=c.matching_epsilon, num_iters=c.matching_iterations, solver=c.matching
        )
        targets = o.teacher_tokens if has_teacher else o.tokens
        matches = ops.align_sets(o.tokens, targets, **solver).index if has_teacher else None
        if o.masked_tokens is not None:
            alignment = ops.align_sets(o.masked_tokens, targets[:, None], **solver)
            metrics |= losses.match_meters(alignment)
            if aligns:
                views_of["align"] = (o.masked_token, alignment.index)
        token = cls = None
        if "token" in kinds:
            metrics["embedding_spread"] = base.spread(jnp.moveaxis(o.token, 1, 0))
            rows = params["token_head"]["prototypes"]
            goals = teacher_logits(teacher, o, "token")
            token = losses.Tokens(o.token, rows, goals, matches, views_of)
        if "cls" in kinds:
            of_view = {"align": o.masked_cls, "local": o.local_cls}
            of_view = {name: x for name, x in of_view.items() if x is not None}
            rows = params["cls_head"]["prototypes"]
            cls = losses.class_tokens(o.cls, rows, teacher_logits(teacher, o, "cls"), of_view)
        terms = losses.stellar(
            token,
            cls,
            embeddings=(o.tokens, *(() if o.masked_tokens is None else (o.masked_tokens,))),
            rebuilt=(o.rebuilt, o.target) if rebuilds else None,
            student_temperature=c.temperature,
            teacher_temperature=c.target_temperature,
            num_iters=c.sinkhorn_iterations,
            weights=c.weights.to_dict(),
        )
        return terms.pop("loss"), base.Output(carry, terms | metrics)

    def show(params, images, features, tokens, constants):
        """Extras: tokens [B, r, d] and, if the weights allow, localization [B, h, w, r], share
        [B, r, K] (the probability of each prototype for each token), and rebuilt, pixels [B, H, W,
        3] in [0, 1] or codes [B, h, w].
        """
        shown = {"tokens": tokens.queries}
        if "token_head" in params:
            rows = params["token_head"]["prototypes"]
            scores = numerics.product("...e,ke->...k", embed(params, tokens, "token"), rows)
            shown["share"] = jax.nn.softmax(scores / c.temperature)
        if "factorise" in params:
            maps, grid = localize(params, tokens), features.patches.shape[1:3]
            shown["localization"] = maps.reshape(len(images), *grid, -1)
            if "decoder" in params and constants is not None:
                out = rebuild(params, constants["fourier"], tokens, maps, grid[1])
                shown["rebuilt"] = goal.show(out, grid)
        return shown

    def teacher_of(params):
        """All parameters, including the decoder, so that the teacher can reconstruct images; None
        without a teacher."""
        return params if has_teacher else None

    def health(metrics):
        """Warns of uniform or collapsed targets, and of tokens that are all similar."""
        warnings = base.assignment_warnings(metrics, token=c.prototypes, cls=c.prototypes)
        contrast = metrics.get("match_contrast", 0.0)
        if contrast > 0.98:
            warnings.append(
                f"similar tokens: matched tokens are {contrast:.2f} times as far apart as any two, "
                "so the matching finds nothing; raise stellar.weights.koleo or lower optim.lr"
            )
        return warnings

    return base.Method(
        views=views,
        init=init,
        encode=encode,
        objective=objective,
        features=multicrop.features_of(backbone.teacher, m, "queries", show),
        constants=constants,
        constant_shapes=constant_shapes,
        teacher_of=teacher_of,
        rules=((".*", base.Rule(decay=True if c.decay == "all" else "matrices")),),
        health=health,
        meanings=base.entropies(token=c.prototypes, cls=c.prototypes),
    )
