"""STELLAR: an image as a few sparse tokens S ("what") times a localization map L ("where").

Latent queries pass through the ViT beside the patches and come out as S; the patches U say by
cosine which token explains them (L). The product Z = L S must rebuild the image, and the tokens
must agree with balanced prototypes and with the matched tokens of masked views."""

import collections

import jax
import jax.numpy as jnp
import ml_collections

from ssl_jax import ops
from ssl_jax.config import InputError, check_choice
from ssl_jax.losses.stellar import stellar as stellar_loss
from ssl_jax.methods import base, concepts
from ssl_jax.models import decoder, factorise, heads, vit, zoo
from ssl_jax.models import tokenizer as targets
from ssl_jax.views import focal, masks, recipe

_CHOICES = {
    "targets": ("self", "teacher"),
    "target": ("pixel", "vq"),
    "matching": ("sinkhorn", "hungarian"),
    "mask_focus": ("gaussian", "window", "none"),
    "decay": ("all", "matrices"),
}
_LEAST = {  # 0: must be above
    "prototypes": 2,
    "head_hidden": 1,
    "head_out": 1,
    "sinkhorn_iterations": 1,
    "matching_iterations": 1,
    "decoder_width": 2,
    "decoder_depth": 1,
    "decoder_heads": 1,
    "target_temperature": 0,
    "temperature": 0,
    "matching_epsilon": 0,
}


def defaults() -> ml_collections.ConfigDict:
    """The `stellar` section of the config: the paper's values for ViT-B/16, but pixels as target.
    Tokens: model.queries.
    """
    c = ml_collections.ConfigDict()
    # "self": the main view's own assignments; "teacher": an EMA teacher's (warm-up from a random
    # network)
    c.targets = "self"
    c.cls = True  # cluster and align the class token too
    c.masked = (
        True  # encode views.global_count masked views; the first shows the region of the main view
    )
    c.mask_ratio = 0.8  # share of patches dropped from a masked view
    # what a masked view prefers to keep: "gaussian" (near a place), "window" (a square) or "none"
    c.mask_focus = "gaussian"
    c.mask_focus_prob = 0.5  # probability of that preference, per view
    c.target = "pixel"  # of the reconstruction: "pixel", or "vq" (codes of a frozen tokenizer)
    c.tokenizer = ""  # its weights, .safetensors or .npz; only for target "vq"
    c.localization_temperature = (
        0.06  # of the softmax over tokens; 0 = plain inner products / sqrt(width)
    )
    c.prototypes = 16384  # K of each head
    c.head_hidden = 2048  # width of a head's hidden layer
    c.head_out = 256  # width of the L2-normalised embedding
    c.target_temperature = 0.06  # of the Sinkhorn targets
    c.temperature = 0.12  # of the predictions
    c.sinkhorn_iterations = 3
    c.matching = (  # of token sets: "sinkhorn" (argmax of the plan) or "hungarian" (one to one)
        "sinkhorn"
    )
    c.matching_epsilon = (
        0.1  # entropic weight, in units of the distance of tokens; smaller is sharper
    )
    c.matching_iterations = 5
    c.decoder_width = 512
    c.decoder_depth = 6
    c.decoder_heads = 8
    # a1 to a4 of eq. 6; 0 leaves the terms out. a1 = 10 for pixels, .05 for codes.
    c.weights = ml_collections.ConfigDict(
        dict(reconstruction=10.0, cluster=1.0, align=1.0, koleo=0.1)
    )
    # weight decay: "all" parameters (official code), or "matrices" (no biases and norms)
    c.decay = "all"
    return c


def check(config) -> None:
    """Refuses impossible settings of the `stellar` section by name. Raises InputError."""
    c, v, m = config.stellar, config.views, config.model
    for key, allowed in _CHOICES.items():
        check_choice(f"stellar.{key}", c[key], allowed)
    for key, low in _LEAST.items():
        if c[key] < low or (low == 0 and c[key] == 0):
            raise InputError(
                f"stellar.{key} is {c[key]}; it must be {f'at least {low}' if low else 'above 0'}"
            )
    patches = (v.global_size // m.patch) ** 2
    aligns, few = (
        c.weights.align > 0,
        not (0 <= c.mask_ratio < 1 and masks.floor(patches * (1 - c.mask_ratio))),
    )
    for wrong, message in (
        (
            c.localization_temperature < 0,
            (
                f"stellar.localization_temperature is {c.localization_temperature}; it must be 0 or"
                " more"
            ),
        ),
        (c.decoder_width % 2, f"stellar.decoder_width is {c.decoder_width}; it must be even"),
        (
            c.decoder_width % c.decoder_heads,
            (
                f"stellar.decoder_heads is {c.decoder_heads}; it must divide decoder_width"
                f" {c.decoder_width}"
            ),
        ),
        (
            m.queries < 1,
            (
                f"model.queries is {m.queries}; STELLAR needs at least 1 sparse token (the paper"
                " has 16)"
            ),
        ),
        (
            min(c.weights.values()) < 0,
            f"stellar.weights are {c.weights.to_dict()}; none may be below 0",
        ),
        (max(c.weights.values()) == 0, "stellar.weights are all 0; set one above 0"),
        (
            c.cls and not m.cls,
            "stellar.cls is True but model.cls is False; set model.cls=True or stellar.cls=False",
        ),
        (
            v.mask != "none",
            (
                f'views.mask is "{v.mask}"; STELLAR masks by stellar.mask_ratio, so set'
                ' views.mask="none"'
            ),
        ),
        (
            v.local_count and not (c.cls and aligns),
            (
                f"views.local_count is {v.local_count}, but local crops only align the class token:"
                " set it to 0, or set stellar.cls=True and stellar.weights.align above 0"
            ),
        ),
        (
            aligns and not (c.masked or v.local_count),
            "stellar.weights.align is above 0 without a view to align; set stellar.masked=True",
        ),
        (
            c.masked and few,
            (
                f"stellar.mask_ratio is {c.mask_ratio}; a masked view must keep one or more of its"
                f" {patches} patches: use 0 to {1 - 1 / patches:.4f}"
            ),
        ),
    ):
        if wrong:
            raise InputError(message)
    if c.weights.reconstruction > 0:
        with recipe.named(f'stellar.target is "{c.target}" but '):
            targets.target(c.target, m.patch).weights(c.tokenizer, required=True)


def views(config) -> recipe.ViewRecipe:
    """global: the main view without colour changes, and for a teacher its own view with them;
    masked; local.
    """
    c = config.stellar
    mask = (
        dict(ratio=c.mask_ratio, focus=c.mask_focus, focus_prob=c.mask_focus_prob)
        if c.masked
        else None
    )
    return focal.recipe_focal(
        config.views, config.model.patch, mask=mask, second=c.targets == "teacher"
    )


# The head serves sparse and class tokens, each with its own parameters. uses: which of "token",
# "cls" (heads) and "rebuild" there are.
_Networks = collections.namedtuple("_Networks", "backbone head project decode target uses")


def _networks(config, drop_path: float = 0.0) -> _Networks:
    c, m = config.stellar, config.model
    clusters = c.weights.cluster > 0 or c.weights.align > 0
    target = targets.target(c.target, m.patch)
    return _Networks(
        vit.vit(zoo.vit_config(m, drop_path=drop_path)),
        heads.projection_head(
            m.width,
            hidden=c.head_hidden,
            out=c.head_out,
            layers=2,
            init_std=m.init_std,
            dtype=m.dtype,
        ),
        factorise.projections(m.width, dtype=m.dtype),
        decoder.decoder(
            m.width,
            target.width,
            width=c.decoder_width,
            depth=c.decoder_depth,
            heads=c.decoder_heads,
            init_std=m.init_std,
            gelu=m.gelu,
            remat=m.remat,
            dtype=m.dtype,
        ),
        target,
        ("token",) * clusters
        + ("cls",) * (clusters and c.cls)
        + ("rebuild",) * (c.weights.reconstruction > 0),
    )


def init(key, config):
    """Parameters of encoder, heads, projections and decoder; "frozen": the Fourier matrix G and the
    tokenizer. No carry.
    """
    c, net, keys = config.stellar, _networks(config), jax.random.split(key, 8)
    params, frozen = {"backbone": net.backbone.init(keys[0])}, {}
    for kind, key_mlp, key_rows in (("token", *keys[1:3]), ("cls", *keys[3:5])):
        if kind in net.uses:
            rows = jax.random.normal(key_rows, (c.prototypes, c.head_out))
            params[f"{kind}_head"] = {"projection": net.head.init(key_mlp), "prototypes": rows}
    if "rebuild" in net.uses:
        params |= {"factorise": net.project.init(keys[5]), "decoder": net.decode.init(keys[6])}
        frozen = {
            "fourier": factorise.fourier_matrix(keys[7], c.decoder_width),
            **net.target.weights(c.tokenizer),
        }
    if c.targets == "teacher":
        frozen["has_teacher"] = jnp.ones(
            ()
        )  # the mark that `teacher_of`, which sees no config, goes by
    return params | ({"frozen": frozen} if frozen else {}), None


def teacher_of(params):
    """With targets from a teacher: all that `features` may read. The decoder and frozen arrays have
    no copy.
    """
    kept = {name: value for name, value in params.items() if name not in ("decoder", "frozen")}
    return kept if "has_teacher" in params.get("frozen", {}) else None


def rules(config):
    """Nothing under "frozen" moves; decay on everything (official code) or on matrices only."""
    decay = True if config.stellar.decay == "all" else "matrices"
    return (("frozen/.*", base.Rule(freeze_epochs=base.NEVER)), (".*", base.Rule(decay=decay)))


def encode(params, teacher, batch, keys, config):
    """Runs the networks on all views. What the config leaves out is absent from the result.

    Returns:
      tokens [B, r, d], masked_tokens [B, V, r, d], teacher_tokens: sparse tokens; token [B, r, e],
      cls [B, e], masked_token [B, V, r, e], masked_cls [B, V, e], local_cls [B, W, e],
      teacher_token, teacher_cls: embeddings; reconstruction [B, n, c] and target, [B, n(, c)].
    """
    c, net = config.stellar, _networks(config, config.model.drop_path)
    image_keys = jax.vmap(lambda k: jax.random.split(k, 3))(keys)

    def embed(prefix, weights, tokens, kinds):
        of = {"token": tokens.queries, "cls": tokens.cls}
        return {
            prefix + k: net.head.apply(weights[f"{k}_head"]["projection"], of[k])
            for k in kinds
            if k in net.uses
        }

    images = batch["global"].images
    seen = net.backbone.apply(params["backbone"], images[:, 0], keys=image_keys[:, 0])
    out = {"tokens": seen.queries, **embed("", params, seen, ("token", "cls"))}
    if "rebuild" in net.uses:
        out["reconstruction"] = _rebuild(
            net, params, seen, c, images.shape[-2] // config.model.patch
        )
        out["target"] = net.target.encode(
            *jax.lax.stop_gradient((params["frozen"], images[:, 0])), dtype=config.model.dtype
        )
    if "masked" in batch:
        seen = concepts.encode(net.backbone, params["backbone"], batch["masked"], image_keys[:, 1])
        out |= {
            "masked_tokens": seen.queries,
            **embed("masked_", params, seen, ("token", "cls") if c.weights.align > 0 else ()),
        }
    if "local" in batch:
        out |= embed(
            "local_",
            params,
            concepts.encode(net.backbone, params["backbone"], batch["local"], image_keys[:, 2]),
            ("cls",),
        )
    if teacher is not None:  # one other global crop, unmasked, as a constant
        clean = _networks(config).backbone.apply(teacher["backbone"], images[:, 1])
        out |= jax.lax.stop_gradient(
            {"teacher_tokens": clean.queries, **embed("teacher_", teacher, clean, ("token", "cls"))}
        )
    return out


def _localization(net, params, tokens, c):
    """L [B, n, r]: the softmax over tokens of cosines between projected patches and sparse
    tokens.
    """
    projected = net.project.apply(params["factorise"], tokens.patches, tokens.queries)
    return ops.localization(*projected, temperature=c.localization_temperature or None)


def _rebuild(net, params, tokens, c, columns: int):
    """Decoder output [B, n, c] of Z = L S (eq. 1 and 3); the gradient goes through L and S into the
    encoder.
    """
    latent = factorise.recompose(_localization(net, params, tokens, c), tokens.queries)
    matrix = jax.lax.stop_gradient(params["frozen"]["fourier"])
    codes = factorise.fourier_codes(matrix, (latent.shape[1] // columns, columns))
    return net.decode.apply(params["decoder"], latent, codes)


def objective(params, teacher, outputs, carry, key, progress, config):
    """Matches the token sets (no gradient), then L of eq. 6 over the whole batch."""
    del key, progress
    c, o, metrics = config.stellar, outputs, {}
    solver = dict(epsilon=c.matching_epsilon, num_iters=c.matching_iterations, solver=c.matching)
    goal, given = o.get("teacher_tokens", o["tokens"]), {}
    if teacher is not None:
        given["token_matches"] = ops.align_sets(o["tokens"], goal, **solver).index
    if "masked_tokens" in o:
        found = ops.align_sets(o["masked_tokens"], goal[:, None], **solver)
        given["matches"] = found.index
        metrics |= concepts.match_meters(found)
    if "token" in o:
        metrics["embedding_spread"] = base.spread(jnp.moveaxis(o["token"], 1, 0))
    for kind in ("token", "cls"):
        if kind in o:
            given[f"{kind}_prototypes"] = params[f"{kind}_head"]["prototypes"]
        if f"teacher_{kind}" in o:
            rows = teacher[f"{kind}_head"]["prototypes"]
            given[f"teacher_{kind}_logits"] = jnp.matmul(
                o[f"teacher_{kind}"], rows.T, precision="highest"
            )
    given |= {
        f"{name}_logits": o[name]
        for name in ("token", "cls", "masked_token", "masked_cls", "local_cls")
        if name in o
    }
    terms = stellar_loss(
        **given,
        **{name: o.get(name) for name in ("tokens", "masked_tokens", "reconstruction", "target")},
        target_temperature=c.target_temperature,
        temperature=c.temperature,
        num_iters=c.sinkhorn_iterations,
        weights=c.weights.to_dict(),
    )
    return terms.pop("loss"), base.Output(carry, terms | metrics)


def features(params, images, config, *, layers=(), attention=False):
    """The image is the mean of its sparse tokens. extras: tokens [B, r, d], and localization [B, h,
    w, r] if it was trained.
    """
    net, (b, height, width), p = _networks(config), images.shape[:3], config.model.patch
    seen = net.backbone.apply(params["backbone"], images, layers=layers, attention=attention)
    grid, extras = (b, height // p, width // p, -1), {"tokens": seen.queries}
    if "factorise" in params:
        extras["localization"] = _localization(net, params, seen, config.stellar).reshape(grid)
    return base.Features(
        seen.queries.mean(axis=1),
        seen.cls,
        seen.patches.reshape(grid),
        seen.attention,
        seen.layers,
        extras,
    )


def reconstruct(params, images, config):
    """Images [B, H, W, 3] rebuilt from their sparse tokens, in [0, 1]; None if the tree holds no
    decoder (no reconstruction, a teacher).
    """
    if not {"decoder", "frozen"} <= set(params):
        return None
    net, (h, w) = _networks(config), (side // config.model.patch for side in images.shape[1:3])
    out = _rebuild(net, params, net.backbone.apply(params["backbone"], images), config.stellar, w)
    return net.target.decode(config.stellar.tokenizer, out, (h, w))


def pictures(params, images, config):
    """Localization maps, reconstructions, and the images that share a concept (figs. 3 to 5), as
    far as the tree allows.
    """
    found, share = features(params, images, config), None
    if "token_head" in params:
        embedding = _networks(config).head.apply(
            params["token_head"]["projection"], found.extras["tokens"]
        )
        share = jax.nn.softmax(
            embedding @ params["token_head"]["prototypes"].T / config.stellar.temperature
        )
    return concepts.pictures(
        images, found.extras.get("localization"), share, reconstruct(params, images, config)
    )


def health(metrics, config):
    """Targets that say nothing, or the same of all images; tokens of an image that cannot be told
    apart.
    """
    warnings = [
        text
        for kind in ("token", "cls")
        for text in base.assignment_warnings(metrics, kind, config.stellar.prototypes)
    ]
    return warnings + concepts.match_warnings(metrics)


METHOD = base.Method(
    name="stellar",
    defaults=defaults,
    check=check,
    views=views,
    init=init,
    encode=encode,
    objective=objective,
    teacher_of=teacher_of,
    rules=rules,
    features=features,
    health=health,
    pictures=pictures,
)
