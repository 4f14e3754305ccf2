"""The one train step: prepare views -> encode -> objective -> gradient -> clip and AdamW -> EMA
teacher -> carry -> frozen copies.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import ArrayLike
from ml_collections import ConfigDict, FrozenConfigDict

from ssl_jax import methods
from ssl_jax.methods import Method, Output, Progress
from ssl_jax.models import flops
from ssl_jax.ops import numerics
from ssl_jax.runtime import sharding
from ssl_jax.train import schedule
from ssl_jax.train.optim import Optimizer
from ssl_jax.train.state import TrainState
from ssl_jax.views import recipe


def make_step(
    method: Method, optimizer: Optimizer, config: ConfigDict
) -> Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]:
    """Builds step(state, batch) -> (state, metrics), a pure function to be jitted with the state
    donated.

    `config` is resolved. Batches are global arrays: means, memory pushes and nearest neighbours
    cover the global batch. A step with a non-finite loss or gradient leaves params, optimizer,
    teacher and carry unchanged and is counted. If the batch has "stop", bool [B], the metric "stop"
    is True if any row is."""
    plan = schedule.schedules(config)
    # Kernels must not be rounded before adapters are added to them.
    sent = "float32" if config.model.get("lora", 0) else config.model.dtype
    loss_of = make_loss(method, config.optim.chunks, dtype=sent)

    def train_step(state: TrainState, batch):
        batch = dict(batch)
        stop = batch.pop("stop", None)
        key_encode, key_objective = jax.random.split(jax.random.fold_in(state.key, state.step))
        views = recipe.prepare(method.views, batch, config.seed)
        # One key per image, so that chunking does not change a draw.
        keys = jax.random.split(key_encode, batch["index"].shape[0])
        progress = progress_at(state.step, config)

        (loss, out), grads = jax.value_and_grad(loss_of, has_aux=True)(
            state.params, state, views, (keys, key_objective), progress
        )
        params, opt_state, stats = optimizer.update(
            grads,
            state.opt_state,
            state.params,
            lr=plan.lr(state.step),
            weight_decay=plan.weight_decay(state.step),
            epoch=progress.epoch_fraction,
        )
        teacher = ema(state.teacher, method.teacher_of(params), plan.momentum(state.step))

        finite = jnp.isfinite(loss) & jnp.isfinite(stats["grad_norm"])

        def keep(new, old):
            return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

        counters = {
            "nonfinite": state.counters["nonfinite"] + (~finite).astype(jnp.int32),
            "replaced": state.counters["replaced"] + batch["replaced"].sum(dtype=jnp.int32),
        }
        teacher, done = keep(teacher, state.teacher), state.step + 1
        new_state = state._replace(
            step=done,
            params=keep(params, state.params),
            teacher=teacher,
            opt_state=keep(opt_state, state.opt_state),
            carry=methods.settle(out.carry, state.carry, finite),
            counters=counters,
        )
        if method.freeze:
            frozen = method.freeze(state.constants, new_state.params, teacher, done)
            new_state = new_state._replace(constants=frozen)
        metrics = {
            "loss": loss,
            **out.metrics,
            **stats,
            **plan.at(state.step),
            **counters,
            "finite": finite,
        }
        if stop is not None:
            metrics["stop"] = stop.any()
        return new_state, metrics

    return train_step


def make_loss(
    method: Method, chunks: int, *, dtype: str = "float32"
) -> Callable[..., tuple[jax.Array, Output]]:
    """Builds loss(params, state, views, (keys, key_objective), progress) -> (scalar, Output) for a
    batch of prepared views with one key per image. dtype: compute dtype of the networks."""

    def loss(params, state, views, keys, progress):
        def encode(weights, images):
            trees = (weights[name] for name in ("params", "teacher", "constants"))
            networks = functools.partial(method.encode, *trees)
            return in_chunks(functools.partial(networks, progress=progress), chunks)(*images)

        weights = dict(params=params, teacher=state.teacher, constants=state.constants)
        encode_sharded = sharding.by_image(encode, method.placement, dtype=dtype)
        outputs = encode_sharded(weights, (views, keys[0]))
        return method.objective(params, state.teacher, outputs, state.carry, keys[1], progress)

    return loss


def flops_per_image(config: ConfigDict, state: TrainState) -> float:
    """Matrix-product FLOPs of one step per image: networks and loss, forward and backward.

    Counted by tracing the loss without running it. The count covers the work of the model (kept
    patches, views of the teacher alone, heads, decoders) and excludes rematerialisation.

    config: resolved. state: a TrainState of arrays or ShapeDtypeStructs.
    """
    plain = ConfigDict(config.to_dict())
    plain.model.remat, plain.model.attention = "none", "xla"  # kernels hide their products
    method, size = methods.make(FrozenConfigDict(plain)), config.optim.batch_size
    loss = make_loss(method, chunks=1)

    def gradient(params, state, views):
        keys = jax.random.split(numerics.key(0), size)
        progress = progress_at(jnp.int32(0), config)
        return jax.grad(loss, has_aux=True)(params, state, views, (keys, keys[0]), progress)

    views = recipe.abstract_views(method.views, size, config.model.in_channels)
    return flops.matmul_flops(gradient, state.params, state, views) / size


def compile_step(train_step: Callable, mesh: Mesh, state_shardings: Any) -> jax.stages.Wrapped:
    """Jits the step for a mesh: the state is donated and keeps its shardings, metrics are
    replicated. The mesh is in context inside the step, for code that shards its work.

    train_step: a function of the state and further arguments that are on the mesh, such as a batch.
    """

    @functools.wraps(train_step)
    def on_mesh(state, *batch):
        # optax and JAX's attention mix types, which a user's environment may forbid.
        mixing = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh), mixing[0], mixing[1]:
            return train_step(state, *batch)

    return jax.jit(
        on_mesh, donate_argnums=0, out_shardings=(state_shardings, sharding.replicated(mesh))
    )


def progress_at(step: jax.Array, config: ConfigDict) -> Progress:
    """Step and epoch as traced scalars; epoch = step // steps_per_epoch (the last partial batch is
    dropped).
    """
    per_epoch = config.run.steps_per_epoch
    return Progress(
        step=step,
        epoch=step // per_epoch,
        epoch_fraction=step / per_epoch,
        steps_per_epoch=per_epoch,
        total_steps=schedule.ends(config.optim, per_epoch)[0],
    )


def ema(teacher: Any, student: Any, momentum: ArrayLike) -> Any:
    """teacher <- momentum * teacher + (1 - momentum) * student, leaf by leaf; None stays None."""
    return jax.tree.map(lambda t, s: momentum * t + (1 - momentum) * s, teacher, student)


def in_chunks(encode: Callable, chunks: int) -> Callable:
    """Exact gradient accumulation: encodes the batch in `chunks` rematerialised pieces; ONE loss
    then sees all embeddings.

    The pieces are strided (row i belongs to piece i % chunks), so that each piece of a sharded
    batch spans all devices. Contiguous pieces would make XLA gather the images.
    """
    if chunks == 1:
        return encode

    def chunked(views, keys):
        def split(x):
            return x.reshape(-1, chunks, *x.shape[1:]).swapaxes(0, 1)

        def join(x):
            return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])

        outputs = jax.lax.map(
            lambda piece: jax.checkpoint(encode)(*piece), jax.tree.map(split, (views, keys))
        )
        return jax.tree.map(join, outputs)

    return chunked
