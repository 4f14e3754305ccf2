"""The calls that `python -m benchmarks parts` times: operations of CrIBo's table 9 and of STELLAR's
table 13, the steps of SOP's table B.1. Each function takes the number of images, whether networks
are narrow, and operations to leave out.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks import steps as bench_steps
from ssl_jax import api, ops
from ssl_jax.methods import base, multicrop
from ssl_jax.methods.cribo import objects
from ssl_jax.models import decoder, factorise, heads
from ssl_jax.train import loop, step
from ssl_jax.views import recipe

Calls = dict[str, Callable[[], object]]  # {operation: a call whose result is waited for}
HUNGARIAN = "Hungarian matching"


def _config(name: str, images: int, small: bool):
    """A config on photographs with so many images a step: on a CPU in float32, with blocks that are
    compiled once."""
    config = bench_steps.with_photographs(name)
    config.optim.batch_size, config.evals.tasks = images, ()
    config.optim.warmup_epochs, config.optim.epochs = 0.0, 1.0
    if jax.default_backend() == "cpu":
        config.model.dtype, config.model.scan = "float32", True
    if small:
        config.model.update(dict(size="custom", width=64, depth=1, heads=2))
    return config


def _ready(config):
    """(run, parameters, carry, views of a batch)."""
    run = api.prepare(config)
    batches = loop.open_loader(run)
    batch = next(batches)
    batches.close()
    prepare = functools.partial(recipe.prepare, run.method.views, seed=run.config.seed)
    return run, *jax.jit(run.method.init)(jax.random.key(0)), jax.jit(prepare)(batch)


def cribo(images: int, small: bool, skipped: frozenset) -> Calls:
    """Table 9: ViT-B/16, K = 12, a memory of 25000 images. The teacher is the student."""
    if skipped:
        return {}  # all need the forward pass
    config = _config("cribo:vitb16_in1k", images, small)
    config.cribo.clusters = 12
    if small:
        config.cribo.update(dict(memory=8, prototypes=64))
    run, params, carry, views = _ready(config)
    c, m, keys = run.config.cribo, run.config.model, jax.random.split(jax.random.key(0), images)
    progress = step.progress_at(jnp.int32(0), run.config)
    trunk = heads.projection_head(
        m.width, hidden=c.head_hidden, out=c.head_bottleneck, init_std=m.init_std, dtype=m.dtype
    )
    last = heads.prototypes(c.head_bottleneck, c.prototypes, dtype=m.dtype)

    def logits(layer, x):
        return jnp.matmul(x.astype(m.dtype), last.apply(layer))

    assign = objects.clustering(c, c.clusters)

    @jax.jit
    def forward(params, views):
        """Both networks; the class tokens up to their logits."""
        out = run.method.encode(params, params, None, views, keys, progress)
        return out, [logits(params["head"]["images"], x) for x in (out.student, out.teacher)]

    @jax.jit
    def cluster(out):
        weight = c.position_weight
        return assign(out.teacher_tokens, out.positions, out.seeds, weight)

    @functools.partial(jax.jit, donate_argnums=0)
    def retrieve(memory, found, valid):
        near, _, closed, _ = objects.retrieve(found, valid, memory, group=c.group)
        return base.settle(objects.remembered(found, valid), memory), near, closed

    @jax.jit
    def project(params, *of_networks):
        head = params["head"]
        return [logits(head["objects"], trunk.apply(head["trunk"], x)) for x in of_networks]

    out, _ = forward(params, views)
    assigned = cluster(out)
    found, valid = ops.object_tokens(out.teacher_tokens, assigned)
    of_student, _ = ops.object_tokens(out.student_tokens, assigned)
    kept = {"memory": carry.pop("memory")}

    def retrieval():
        kept["memory"], *results = retrieve(kept["memory"], found, valid)
        return kept["memory"], results

    @functools.cache
    def whole():
        kept.clear()  # of the size of the state
        return bench_steps.Step(config).fill()

    return {
        "forward pass": lambda: forward(params, views),
        "clustering": lambda: cluster(out),
        "retrieval and update": retrieval,
        "object projections": lambda: project(params, of_student, found),
        "step": lambda: whole().turn(1),
    }


def stellar(images: int, small: bool, skipped: frozenset) -> Calls:
    """Table 13: ViT-B/16 with 16 sparse tokens, 8 masked views; forward alone."""
    run, params, _, views = _ready(_config("stellar:vitb16", images, small))
    c, m = run.config.stellar, run.config.model
    encoder = multicrop.encoders(m).student
    decode = decoder.decoder(
        m.width,
        3 * m.patch**2,
        width=c.decoder_width,
        depth=c.decoder_depth,
        heads=c.decoder_heads,
        init_std=m.init_std,
        gelu=m.gelu,
        attention=m.attention,
        dtype=m.dtype,
    )
    side, keys = run.config.views.global_size // m.patch, jax.random.split(jax.random.key(0), 4)

    def normal(key, *shape):
        return jax.random.normal(key, shape, jnp.float32)

    latent = normal(keys[0], images, side**2, m.width)
    codes = factorise.fourier_codes(run.method.constants()["fourier"], (side, side))
    tokens = normal(keys[1], images, 1, m.queries, m.width)
    masked = normal(keys[2], images, run.config.views.global_count, m.queries, m.width)
    scores = normal(keys[3], images * m.queries, c.prototypes)
    matching = dict(epsilon=c.matching_epsilon, num_iters=c.matching_iterations)

    @jax.jit
    def cluster(scores):
        temperature = c.target_temperature
        h = ops.sinkhorn_potentials(
            scores, temperature=temperature, num_iters=c.sinkhorn_iterations
        )
        return jax.nn.softmax(scores / temperature + h)

    def matched(solver):
        match = jax.jit(functools.partial(ops.align_sets, solver=solver, **matching))
        return lambda: match(masked, tokens)

    encode, encode_masked = (
        jax.jit(encoder.apply),
        jax.jit(functools.partial(multicrop.encode, encoder)),
    )
    rebuild = jax.jit(decode.apply)
    calls = {
        "encoder": lambda: encode(params["backbone"], views["global"].images[:, 0]),
        "decoder": lambda: rebuild(params["decoder"], latent, codes),
        "mask encoding": lambda: encode_masked(params["backbone"], views["masked"]),
        "SK clustering": lambda: cluster(scores),
        "Sinkhorn matching": matched("sinkhorn"),
        HUNGARIAN: matched("hungarian"),
    }
    return {name: call for name, call in calls.items() if name not in skipped}


def sop(images: int, small: bool, skipped: frozenset) -> Calls:
    """Table B.1: the step of ViT-S/16 with two large and ten small crops, of four methods."""

    @functools.cache
    def made(name):
        return bench_steps.Step(_config(f"{name}:vits16", images, small)).fill()

    def turn(name):
        return made(name).turn(1)

    names = [name for name in ("dino", "ibot", "massl", "sop") if f"{name} step" not in skipped]
    return {f"{name} step": functools.partial(turn, name) for name in names}
