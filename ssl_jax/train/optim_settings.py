"""The section `optim` of the config."""

from ml_collections import ConfigDict

from ssl_jax.config import InputError, key
from ssl_jax.train import updates


def defaults() -> dict:
    """The section `optim` of the config: batch, length of the run, learning rate, AdamW."""
    return dict(
        name=key(
            "adamw",
            "update rule; lars and sgd take beta1 as momentum and no beta2",
            choices=tuple(updates.TRANSFORMATIONS),
        ),
        batch_size=key(
            1024, "per step, over all devices and processes", "images", above=0, most=2**24
        ),
        epochs=key(100.0, "length of the run", "epochs", least=0, most=10**6),
        steps=key(
            0,
            "length of the run, which ends a longer warm-up too; 0 = epochs * steps per epoch",
            "steps, counted in 32 bits",
            least=0,
            most=2**31 - 1,
        ),
        extended=key(
            (),
            "further ends of the run, see --extend; from each end to the next, learning rate,"
            " weight decay and teacher momentum start their cosines again",
            "steps from the start of the run",
            element=1,
            above=0,
            most=2**31 - 1,
        ),
        lr=key(
            5e-4,
            "peak learning rate for a batch of base_batch; scaled by batch_size / base_batch",
            above=0,
            most=1000,
        ),
        base_batch=key(256, "batch that lr is meant for", "images", above=0, most=2**24),
        final_lr=key(1e-6, "end of the cosine, not scaled", least=0, most=1000),
        warmup_epochs=key(
            10.0, "linear warm-up of the learning rate from 0", "epochs", least=0, most=10**6
        ),
        weight_decay=key(0.04, "decoupled (AdamW), at step 0", least=0, most=1000),
        final_weight_decay=key(0.4, "end of its cosine", least=0, most=1000),
        beta1=key(0.9, "decay of the first moment", least=0, below=1),
        beta2=key(0.999, "decay of the second moment", least=0, below=1),
        eps=key(1e-8, "added to the root of the second moment", above=0, most=1),
        clip=key(3.0, "largest L2 norm of a gradient", least=0),
        clip_by=key(
            "tensor",
            'whose norm: each "tensor" (DINO family), the "global" one, or "none"',
            choices=("tensor", "global", "none"),
        ),
        backbone_lr=key(
            1.0,
            "factor on the learning rate of the backbone, for weights of init_from",
            least=0,
            most=1000,
        ),
        backbone_layer_decay=key(
            1.0,
            "of the backbone's blocks, each has this factor on the learning rate of the next one;"
            " what lies before them that of one more",
            above=0,
            most=1,
        ),
        backbone_freeze_epochs=key(
            0.0,
            "the backbone is not trained before this epoch, so that new heads get to know it",
            "epochs, rounded up",
            least=0,
            most=10**6,
        ),
        chunks=key(
            1,
            "pieces in which a batch is encoded, to save memory (same gradient); 1 = off",
            "pieces",
            above=0,
            most=2**24,
            free=True,
        ),
    )


def check(config: ConfigDict) -> None:
    """Refuses settings of `config.optim` that contradict each other. Raises InputError."""
    o = config.optim
    if not (o.epochs > 0 or o.steps > 0):
        raise InputError("optim.epochs and optim.steps are both 0; set one of them above 0")
    if not o.steps and o.warmup_epochs > o.epochs:
        raise InputError(
            f"optim.warmup_epochs is {o.warmup_epochs}, longer than the run; use at most"
            f" optim.epochs = {o.epochs}"
        )
    if o.clip_by != "none" and not o.clip > 0:
        raise InputError(
            f'optim.clip is {o.clip}; it must be above 0 (optim.clip_by="none" switches clipping'
            " off)"
        )
