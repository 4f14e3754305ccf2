"""The section `stellar` of the config and its checks."""

from ml_collections import ConfigDict

from ssl_jax.config import InputError, key
from ssl_jax.models import tokenizer
from ssl_jax.views import masks


def defaults() -> dict:
    """The section `stellar`: the paper's values for ViT-B/16, except pixels as target.

    model.queries is the number of sparse tokens.
    """
    targets = (
        'targets of the clustering loss: "self", the main view\'s own assignments, or "teacher",'
        " those of an EMA teacher (warm-up from a random network)"
    )
    focus = (
        'patches that masked views preferably keep: near a random place ("gaussian"), in a square'
        ' ("window"), or no preference ("none")'
    )
    target = 'what the decoder predicts: "pixel", or "vq" (codes of a frozen tokenizer)'
    decay = 'parameters with weight decay: "all" (official code) or "matrices" (no biases, norms)'
    return dict(
        targets=key("self", targets, choices=("self", "teacher")),
        cls=key(True, "cluster and align the class token too"),
        masked=key(
            True,
            "also encode views.global_count masked views, the first of which shows the main view's"
            " region",
        ),
        mask_ratio=key(0.8, "share of patches dropped from a masked view", least=0, below=1),
        mask_focus=key("gaussian", focus, choices=masks.FOCUS),
        mask_focus_prob=key(0.5, "probability that a view follows mask_focus", least=0, most=1),
        target=key("pixel", target, choices=("pixel", "vq")),
        tokenizer=key(
            "",
            'weights of the tokenizer, .safetensors or .npz; used by target="vq" alone',
            path=True,
            acts="",
        ),
        localization_temperature=key(
            0.06,
            "temperature of the softmax over sparse tokens, to which each patch is assigned;"
            " 0 = plain inner products / sqrt(width)",
            least=0,
        ),
        prototypes=key(16384, "number of prototypes K of each head", least=2, most=2**24),
        head_hidden=key(2048, "width of each head's hidden layer", least=1, most=65536),
        head_out=key(256, "width of the heads' L2-normalised embedding", least=1, most=65536),
        target_temperature=key(0.06, "temperature of the Sinkhorn targets", above=0),
        temperature=key(0.12, "temperature of the predictions", above=0),
        sinkhorn_iterations=key(
            3, "number of Sinkhorn-Knopp scalings for the targets", least=1, most=1000
        ),
        matching=key(
            "sinkhorn",
            'matching of the views\' token sets: "sinkhorn" (argmax of the transport plan) or'
            ' "hungarian" (one to one)',
            choices=("sinkhorn", "hungarian"),
        ),
        matching_epsilon=key(
            0.1,
            "entropic weight of the matching, relative to the distance of tokens;"
            " smaller = sharper",
            above=0,
        ),
        matching_iterations=key(5, "Sinkhorn scalings of the matching", least=1, most=1000),
        decoder_width=key(512, "width of the decoder", least=2, most=65536),
        decoder_depth=key(6, "number of blocks of the decoder", least=1, most=1000),
        decoder_heads=key(8, "number of attention heads of the decoder", least=1, most=4096),
        weights=dict(
            reconstruction=key(
                10.0,
                "weight a1 of the reconstruction (eq. 6): 10 for pixels, .05 for codes",
                least=0,
            ),
            cluster=key(1.0, "weight a2 of the clustering loss", least=0),
            align=key(1.0, "weight a3 of the alignment loss", least=0),
            koleo=key(0.1, "weight a4 of the KoLeo loss", least=0),
        ),
        decay=key("all", decay, choices=("all", "matrices")),
    )


def check(config: ConfigDict) -> None:
    """Raises InputError for settings that contradict each other."""
    c, v, m = config.stellar, config.views, config.model
    patches = (v.global_size // m.patch) ** 2
    aligns = c.weights.align > 0
    for wrong, message in (
        (c.decoder_width % 2, f"stellar.decoder_width is {c.decoder_width}; it must be even"),
        (
            c.decoder_width % c.decoder_heads,
            f"stellar.decoder_heads is {c.decoder_heads}; it must divide decoder_width "
            f"{c.decoder_width}",
        ),
        (
            m.queries < 1,
            f"model.queries is {m.queries}; STELLAR needs at least 1 sparse token (the paper has "
            "16)",
        ),
        (max(c.weights.values()) == 0, "stellar.weights are all 0; set one above 0"),
        (
            c.cls and not m.cls,
            "stellar.cls is True but model.cls is False; set model.cls=True or stellar.cls=False",
        ),
        (
            v.mask != "none",
            f'views.mask is "{v.mask}"; STELLAR masks by stellar.mask_ratio, so set '
            'views.mask="none"',
        ),
        (
            v.local_count and not (c.cls and aligns),
            f"views.local_count is {v.local_count}, but local crops only align the class token: "
            "set it to 0, or set stellar.cls=True and stellar.weights.align above 0",
        ),
        (
            aligns and not (c.masked or v.local_count),
            "stellar.weights.align is above 0 without a view to align; set stellar.masked=True",
        ),
        (
            c.masked and not masks.floor(patches * (1 - c.mask_ratio)),
            f"stellar.mask_ratio is {c.mask_ratio}; a masked view must keep one or more of its "
            f"{patches} patches: use 0 to {1 - 1 / patches:.4f}",
        ),
    ):
        if wrong:
            raise InputError(message)
    if c.weights.reconstruction > 0:
        try:
            goal = tokenizer.target(c.target, m.patch, channels=m.in_channels)
            goal.constants(c.tokenizer)
        except InputError as error:
            raise type(error)(f'stellar.target is "{c.target}" but {error}') from None
