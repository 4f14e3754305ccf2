"""The section `finetune` of the config, its checks and its views."""

from ml_collections import ConfigDict

from ssl_jax.config import InputError, key
from ssl_jax.methods import section_keys
from ssl_jax.views import configured, erasing, mixing, randaugment, recipe

TOKENS = ("cls", "mean", "concat", "queries")


def defaults() -> dict:
    """The section `finetune` of the config: the recipe of DeiT and BEiT, for ImageNet."""
    meaning = (
        'what represents an image: class token ("cls"), mean of the patch tokens ("mean"), both'
        ' ("concat"), or mean of the query tokens ("queries", STELLAR)'
    )
    return dict(
        classes=key(1000, "number of classes of the training set", "classes", least=2, most=2**20),
        global_token=key("cls", meaning, choices=TOKENS),
        hidden=key(
            0,
            "width of a GELU layer before the classifier, initialised from the first layer of the"
            " pretrained head (iBOT's semi-supervised protocol); 0 = no such layer",
            least=0,
            most=65536,
        ),
        norm=key(False, "apply an additional LayerNorm before the classifier (STELLAR)"),
        init_scale=key(
            0.001, "factor on the classifier's initial weights, N(0, model.init_std^2)", above=0
        ),
        layer_decay=key(
            1.0,
            "layer-wise decay: each block's learning rate is this factor times the next block's;"
            " 1 = none",
            above=0,
            most=1,
        ),
        average=key(
            True,
            "evaluate the moving average of the weights, with teacher.momentum; False = the"
            " weights themselves",
        ),
        smoothing=key(
            0.1,
            "label smoothing: share of a target that is spread evenly over all classes; 0 = none",
            least=0,
            below=1,
        ),
        mixup=key(0.8, "alpha of mixup's Beta distribution; 0 = none", least=0),
        cutmix=key(1.0, "alpha of CutMix's Beta distribution; 0 = none", least=0),
        switch_prob=key(0.5, "probability of CutMix instead of mixup, if both on", least=0, most=1),
        mix_prob=key(1.0, "probability that a batch is mixed, by mixup or CutMix", least=0, most=1),
        erase_prob=key(
            0.25,
            "probability that a rectangle of a view is replaced by noise (random erasing)",
            least=0,
            most=1,
        ),
        randaugment=dict(
            count=key(
                2,
                "number of RandAugment operations per view, applied on the host; 0 = none",
                least=0,
                most=20,
            ),
            magnitude=key(9.0, "mean strength of RandAugment, out of 10", least=0, most=10),
            std=key(0.5, "standard deviation of RandAugment's strength", least=0, most=10),
        ),
        repeats=key(
            1, "views of each image in a batch (repeated augmentation)", "views", above=0, most=1000
        ),
    )


def check(config: ConfigDict) -> None:
    """Raises InputError for settings that contradict each other, and for views that fine-tuning
    does not use."""
    c, v, m = config.finetune, config.views, config.model
    section_keys.check_no_masks(config, "fine-tuning")
    section_keys.check_layer_decay(config)
    if v.global_count != 1 or v.local_count:
        raise InputError(
            f"views.global_count is {v.global_count} and views.local_count {v.local_count}, but"
            " fine-tuning has one view of each image; set views.global_count=1 and"
            " views.local_count=0"
        )
    if c.global_token in ("cls", "concat") and not m.cls:
        raise InputError(
            f'finetune.global_token is "{c.global_token}" but model.cls is False; set'
            ' model.cls=True or finetune.global_token="mean"'
        )
    if c.global_token == "queries" and not m.queries:
        raise InputError(
            'finetune.global_token is "queries" but model.queries is 0; set model.queries to the'
            " number of the network's query tokens"
        )
    if c.hidden and c.global_token == "concat":
        raise InputError(
            f'finetune.hidden is {c.hidden} but finetune.global_token is "concat", and a pretrained'
            " head reads one token; set finetune.hidden=0 or another token"
        )
    if c.randaugment.count and config.data.crop_on == "device":
        raise InputError(
            'finetune.randaugment.count is above 0 but data.crop_on is "device", so the host has'
            ' no views to augment; set data.crop_on="host" or'
            " finetune.randaugment.count=0"
        )
    if c.randaugment.count and m.in_channels != 3:
        raise InputError(
            f"finetune.randaugment.count is {c.randaugment.count}, but RandAugment is of RGB, not"
            f" of {m.in_channels} channels (model.in_channels); set finetune.randaugment.count=0"
        )
    if (c.mixup or c.cutmix) and config.optim.batch_size % 2:
        raise InputError(
            f"optim.batch_size is {config.optim.batch_size}, but images are mixed in pairs; use an"
            " even number, or finetune.mixup=0 and finetune.cutmix=0"
        )
    if c.repeats > config.optim.batch_size // 2:
        raise InputError(
            f"finetune.repeats is {c.repeats}, but a batch of {config.optim.batch_size} must have"
            " at least 2 different images; use fewer"
        )


def view_recipe(config: ConfigDict) -> recipe.ViewRecipe:
    """One crop with labels and the augmentations of the config."""
    c, v, m = config.finetune, config.views, config.model
    fill = tuple(round(255 * x) for x in m.mean)
    policy = randaugment.RandAugment(**c.randaugment, fill=fill)
    group = configured.group_of(
        v,
        m.patch,
        count=1,
        photometric=configured.photometric_of_one(v),
        randaugment=policy if policy.count else None,
        erasing=erasing.Erasing(c.erase_prob, mean=tuple(m.mean), std=tuple(m.std))
        if c.erase_prob
        else None,
    )
    mix = None
    if c.mix_prob and (c.mixup or c.cutmix):
        mix = mixing.Mixing(c.mixup, c.cutmix, c.switch_prob, c.mix_prob)
    return recipe.ViewRecipe((("global", group),), classes=c.classes, repeats=c.repeats, mix=mix)
