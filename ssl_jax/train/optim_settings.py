"""The section `optim` of the config."""

from ml_collections import ConfigDict

from ssl_jax.config import InputError, key
from ssl_jax.train import updates


def defaults() -> dict:
    """The section `optim` of the config: batch, length of the run, learning rate, AdamW."""
    return dict(
        name=key(
            "adamw",
            "update rule; lars and sgd use beta1 as momentum and ignore beta2",
            choices=tuple(updates.TRANSFORMATIONS),
        ),
        batch_size=key(
            1024, "images per step, over all devices and processes", "images", above=0, most=2**24
        ),
        epochs=key(100.0, "length of the run, if steps is 0", "epochs", least=0, most=10**6),
        steps=key(
            0,
            "length of the run in steps, which also limits the warm-up; 0 = epochs * steps per"
            " epoch",
            "steps, counted in 32 bits",
            least=0,
            most=2**31 - 1,
        ),
        extended=key(
            (),
            "later ends of an extended run (--extend); between two ends, learning rate, weight"
            " decay and teacher momentum follow their cosines anew",
            "steps from the start of the run",
            element=1,
            above=0,
            most=2**31 - 1,
        ),
        lr=key(
            5e-4,
            "peak learning rate for a batch of base_batch images; multiplied by batch_size /"
            " base_batch",
            above=0,
            most=1000,
        ),
        base_batch=key(256, "batch size that lr refers to", "images", above=0, most=2**24),
        final_lr=key(
            1e-6,
            "learning rate at the end of the cosine; independent of the batch size",
            least=0,
            most=1000,
        ),
        warmup_epochs=key(
            10.0, "linear warm-up of the learning rate; 0 = none", "epochs", least=0, most=10**6
        ),
        weight_decay=key(0.04, "decoupled weight decay (AdamW) at step 0", least=0, most=1000),
        final_weight_decay=key(0.4, "weight decay at the end of its cosine", least=0, most=1000),
        beta1=key(0.9, "decay rate of the first moment", least=0, below=1),
        beta2=key(0.999, "decay rate of the second moment", least=0, below=1),
        eps=key(1e-8, "constant added to the root of the second moment", above=0, most=1),
        clip=key(3.0, "largest L2 norm of a gradient; clip_by says of which one", least=0),
        clip_by=key(
            "tensor",
            'clip by the norm of each "tensor" (DINO family), by the "global" norm, or "none"',
            choices=("tensor", "global", "none"),
        ),
        backbone_lr=key(
            1.0,
            "factor on the backbone's learning rate, for example to fine-tune weights of init_from",
            least=0,
            most=1000,
        ),
        backbone_layer_decay=key(
            1.0,
            "layer-wise decay: each backbone block's learning rate is this factor times the next"
            " block's; layers before the blocks count as one more block; 1 = none",
            above=0,
            most=1,
        ),
        backbone_freeze_epochs=key(
            0.0,
            "epochs at the start in which the backbone is not trained, so that new heads adapt to"
            " it first; 0 = none",
            "epochs",
            least=0,
            most=10**6,
        ),
        chunks=key(
            1,
            "number of pieces in which a batch is encoded to save memory (same gradient); 1 = the"
            " whole batch at once",
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
