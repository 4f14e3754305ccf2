"""Fine-tuning with labels: an encoder that one of the methods pretrained, trained end to end.

    ssl-jax train --config=finetune:vits16 --config.init_from=runs/sop_vits16
        --config.data.dir=/data/tfds --workdir=runs/sop_vits16_finetuned
    ssl-jax train --config=finetune:photos_small --workdir=runs/finetune
        (from a checkout also --config.init_from=zoo/sop_quickstart.safetensors)
    ssl-jax eval runs/finetune --task=classify

Variants: vits16, vitb16, vitl16, all of ImageNet; semi1, semi10, with 1 % and 10 % of its labels
(ViT-S; --config.model.size=b for ViT-B); transfer_cifar10, transfer_cifar100, transfer_flowers,
transfer_cars, transfer_inat18, transfer_inat19 (ViT-B); stellar, the protocol of STELLAR's paper;
small: photos_small, cifar10_small.
Hardware: full size: 8 GPUs of 80 GB or a TPU v4-32; small: 2 CPU cores.
Expected time: not measured by us at full size; photos_small and cifar10_small take minutes.
Expected number: top-1 of SOP and STELLAR, `ssl-jax show --config=finetune:VARIANT`. None of ours at
full size. Without init_from the network starts from random weights, for which none of them holds.
Ours, one seed: photos_small 77.6 from zoo/sop_quickstart and 69.3 from random weights;
cifar10_small (1 % of the labels) 31.7 and 30.3.

`init_from` takes a run folder, one checkpoint of it, a file that `ssl_jax.save` wrote, or published
weights. Where it has a teacher, its weights are taken. What the section `model` says of the network
must be what it was trained with (size, patch, queries, position, layer_scale); for another image
size set model.image_size and views.global_size, and its position embeddings are resized.

ImageNet: BEiT's recipe as iBOT and SOP use it, batch 1024; epochs, drop-path, layer decay and
warm-up by size. SOP's script has a learning rate of 2e-3 with ViT-B and one of 9e-4 with ViT-L;
that of ViT-S is not published, 2e-3 is our choice. The cosine ends at the script's default, 1e-6,
and test images are resized bilinearly.
Semi-supervised: iBOT's protocol; encoder, first layer of the pretrained head and a new classifier,
1000 epochs, 3 repeats, the learning rate per 512 images. 5e-6 is the example of the official code,
which searches it. TFDS has the lists of SimCLR as imagenet2012_subset. Transfer: DeiT's recipe,
batch 768. Both: the cosine ends at 1e-5, nothing is clipped, and the weights themselves are scored,
as in iBOT's code, which keeps a moving average and never tests it (finetune.average=True tests
ours). All three test after each epoch, as that code, which prints the best: `classify_best_of_run`
of results.json, chosen on the test images, beside `classify` of the end. Of a list of your own, set
evals.every_steps to the steps of its epoch, or to 0.

TFDS has no iNaturalist 2019: give a folder with train/CLASS/*.jpg and val/CLASS/*.jpg as data.dir.
STELLAR: linear layer behind a LayerNorm on the mean of the sparse tokens, AdamW without a schedule,
crops of .2-1 and flips alone, 75 epochs; a tenth of the training part is held out (evaluation
held_out) to choose learning rate and batch, which are not published: 5e-5 at 1024 is ours.
Its fine-tuning on ADE20K is the evaluation segment:stellar_finetune.
"""

from ssl_jax import evals, settings
from ssl_jax.config import InputError, unknown

from . import presets

TRAINING = 1281167  # images of ImageNet's training part
# model.size: epochs, drop-path, layer decay, warm-up epochs, learning rate, SOP's top-1
IMAGENET = {
    "vits16": ("s", 200.0, 0.1, 0.75, 20.0, 2e-3, 82.3),
    "vitb16": ("b", 100.0, 0.2, 0.65, 20.0, 2e-3, 84.2),
    "vitl16": ("l", 50.0, 0.4, 0.75, 5.0, 9e-4, 84.9),
}
# list, its images, SOP's ViT-S and ViT-B
SEMI = {"semi1": ("1pct", 12811, 62.1, 69.5), "semi10": ("10pct", 128116, 75.1, 78.4)}
# TFDS set, classes, train, its images, test, learning rate per 512 images, epochs, SOP's top-1
TRANSFER = {
    "transfer_cifar10": ("cifar10", 10, "train", 50000, "test", 7.5e-6, 1000.0, 99.3),
    "transfer_cifar100": ("cifar100", 100, "train", 50000, "test", 7.5e-6, 1000.0, 92.4),
    "transfer_flowers": (
        *("oxford_flowers102", 102, "train+validation", 2040, "test", 7.5e-6, 1000.0, 99.0),
    ),
    "transfer_cars": ("cars196", 196, "train", 8144, "test", 7.5e-5, 1000.0, 94.5),
    "transfer_inat18": (
        *("i_naturalist2018", 8142, "train", 437513, "validation", 7.5e-6, 360.0, 74.6),
    ),
    "transfer_inat19": ("", 1010, "train", 265213, "val", 7.5e-6, 360.0, 79.7),
}
SMALL = ("photos_small", "cifar10_small")
VARIANTS = (*IMAGENET, *SEMI, *TRANSFER, "stellar", *SMALL)


def get_config(variant: str = "vits16"):
    if variant not in VARIANTS:
        raise InputError(unknown("variant", variant, VARIANTS))
    config = settings.base_config("finetune")
    views, optim = config.views, config.optim
    views.global_count, views.local_count, views.global_scale = 1, 0, (0.08, 1.0)
    views.jitter_prob, views.gray_prob, views.solarize_prob = 0.0, 0.0, 0.0
    views.blur_prob = (0.0, 0.0, 0.0)
    optim.weight_decay = optim.final_weight_decay = 0.05
    optim.clip_by = "none"
    config.teacher.momentum = config.teacher.final_momentum = 0.99996
    if variant in SMALL:
        _small(config, variant)
        return config
    presets.imagenet(config, variant if variant in IMAGENET else "vitb16")
    for name in evals.named(config):
        del config.evals[name]
    config.evals.tasks = ("classify",)
    _evaluate(config, dict(kind="tfds", name="imagenet2012", test_split="validation"))
    if variant in IMAGENET:
        _imagenet(config, variant)
    elif variant == "stellar":
        _stellar(config)
    else:
        _deit(config, variant)
    return config


def _evaluate(config, images: dict) -> None:
    """The central 224 pixels of images with a short side of 256."""
    evals.add(config, "classify", data=images | dict(size=256), crop=224)


def _test_every_epoch(config, images: int) -> None:
    config.evals.best, config.evals.every_steps = "classify", images // config.optim.batch_size


def _imagenet(config, variant: str) -> None:
    finetune, optim = config.finetune, config.optim
    _, epochs, drop_path, decay, warmup, lr, top1 = IMAGENET[variant]
    config.model.drop_path, finetune.layer_decay, finetune.average = drop_path, decay, False
    optim.epochs, optim.warmup_epochs, optim.lr, optim.base_batch = epochs, warmup, lr, 1024
    config.evals.classify.bilinear = True
    _test_every_epoch(config, TRAINING)
    config.expected.classify = f"{top1} (SOP paper, table 1)"


def _deit(config, variant: str) -> None:
    """DeiT's recipe, for a part of the labels or for other sets."""
    data, finetune, optim = config.data, config.finetune, config.optim
    finetune.repeats, finetune.init_scale, finetune.average = 3, 1.0, False
    optim.base_batch, optim.warmup_epochs, optim.final_lr = 512, 5.0, 1e-5
    if variant in SEMI:
        part, images, small, base = SEMI[variant]
        data.name, config.model.size = f"imagenet2012_subset/{part}", "s"
        finetune.hidden = 2048
        optim.batch_size, optim.epochs, optim.lr = 1024, 1000.0, 5e-6
        _test_every_epoch(config, images)
        config.expected.classify = f"{small} with ViT-S, {base} with ViT-B (SOP paper, table 1)"
        return
    data.name, finetune.classes, data.split, images, *rest = TRANSFER[variant]
    test, optim.lr, optim.epochs, top1 = rest
    optim.batch_size = 768
    if "inat" in variant:
        finetune.erase_prob = 0.1
    if not data.name:
        data.kind, data.dir = "folder", "inat2019"
    _evaluate(config, dict(kind=data.kind, name=data.name, split=data.split, test_split=test))
    _test_every_epoch(config, images)
    config.expected.classify = f"{top1} (SOP paper, table 3)"


def _stellar(config) -> None:
    finetune, optim = config.finetune, config.optim
    finetune.global_token, finetune.norm, finetune.average = "queries", True, False
    finetune.mixup = finetune.cutmix = finetune.erase_prob = finetune.smoothing = 0.0
    finetune.randaugment.count, finetune.init_scale = 0, 1.0
    config.model.queries, config.model.drop_path = 16, 0.0
    config.views.global_scale = (0.2, 1.0)
    optim.epochs, optim.warmup_epochs, optim.base_batch = 75.0, 0.0, 1024
    optim.lr = optim.final_lr = 5e-5
    optim.weight_decay = optim.final_weight_decay = 1e-4
    config.data.split = "train[:90%]"
    held_out = dict(kind="tfds", name="imagenet2012", test_split="train[90%:]", size=256)
    config.evals.held_out = evals.new("classify", data=held_out, crop=224)
    config.evals.tasks = ("classify", "held_out")
    config.expected.classify = "80.05 (STELLAR paper, table 12)"


def _small(config, variant: str) -> None:
    """The network of `quickstart`, and so of zoo/sop_quickstart, for some hundred steps."""
    data, model, optim, finetune = config.data, config.model, config.optim, config.finetune
    model.size, model.width, model.depth, model.heads = "custom", 96, 4, 3
    model.patch = 8
    model.init_std = model.position_std = 0.1
    model.image_size = config.views.global_size = 32
    config.views.global_scale = (0.3, 1.0)
    data.crop_on, data.cache = "host", "memory"
    finetune.global_token, finetune.init_scale, finetune.layer_decay = "mean", 1.0, 0.75
    finetune.mixup, finetune.cutmix, finetune.randaugment.count = 0.2, 0.0, 1
    optim.batch_size = optim.base_batch = 64
    optim.steps, optim.lr, optim.warmup_epochs = 400, 2e-3, 1.0
    config.teacher.momentum = config.teacher.final_momentum = 0.99
    config.checkpoint.every_steps, config.log.every_steps = 200, 50
    if variant == "photos_small":
        data.kind, data.length, data.size, finetune.classes = "photos", 2048, 64, 17
        evals.add(config, "classify", data=dict(kind="photos", size=32), test_examples=2000)
    else:
        data.kind, data.name, data.split, finetune.classes = "tfds", "cifar10", "train[:1%]", 10
        evals.add(config, "classify", data=dict(kind="tfds", name="cifar10", split=data.split))
    config.evals.tasks, config.evals.every_steps = ("classify",), 200
