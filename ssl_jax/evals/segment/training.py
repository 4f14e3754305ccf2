"""Training of a head, alone for several learning rates at once, or with the network."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ssl_jax.evals.segment import optimizer as optimizer_lib
from ssl_jax.evals.segment.network import Network
from ssl_jax.losses.segmentation import dice, pixel_cross_entropy
from ssl_jax.models import segmentation
from ssl_jax.ops import numerics
from ssl_jax.runtime import distributed, sharding

_TOLD = 60.0  # seconds between two lines about a long training
_AHEAD = 2  # steps that wait on the device


class Trained(NamedTuple):
    """Of one learning rate, on the host: params {"head": ..., and "backbone": ... if it was
    trained}, stats of BatchNorm, loss [steps]."""

    params: Any
    stats: Any
    loss: np.ndarray


def loss_of(config: Any, out: segmentation.Logits, masks: jax.Array) -> jax.Array:
    """The loss of a batch: cross-entropy, Dice and the auxiliary head as the config weighs them.

    masks: [B, H, W] int, 255 = ignore.
    """

    def one(logits):
        if config.level == "patch":
            labels = grid_labels(masks, logits.shape[1:3])
        else:
            logits, labels = segmentation.upsample(logits, masks.shape[1:3]), masks
        total = pixel_cross_entropy(logits, labels, average=config.average)
        return total + config.dice * dice(logits, labels) if config.dice else total

    loss = one(out.logits)
    if out.auxiliary is not None and config.auxiliary:
        loss = loss + config.auxiliary * one(out.auxiliary)
    return loss


def grid_labels(masks: Any, grid: Sequence[int]) -> Any:
    """[..., H, W] -> [..., h, w], the label at (floor(i H / h), floor(j W / w)), as torch's nearest
    interpolation."""
    rows, columns = (np.arange(new) * old // new for new, old in zip(grid, masks.shape[-2:]))
    return masks[..., rows, :][..., columns]


def fit(
    network: Network,
    config: Any,
    batches: Iterable[dict[str, np.ndarray]],
    *,
    lrs: Sequence[float],
    steps: int,
    seed: int,
    mesh: Mesh,
) -> list[Trained]:
    """Trains one head per learning rate on the same batches, all from the same start.

    With a frozen network every batch is encoded once for all; else there is one learning rate, and
    the network is trained with its head.

    batches: {"image": uint8 [b, H, W, 3], "mask": uint8 [b, H, W]}, the rows of this process.
    """
    if not config.frozen and len(lrs) != 1:
        raise ValueError(f"a network is trained with one learning rate at a time, got {lrs}")
    key = numerics.key(seed)
    head, stats = network.head.init(jax.random.fold_in(key, 0))
    params = {"head": head} if config.frozen else {"head": head, **network.backbone}
    optimizer = optimizer_lib.make(config, params, network.depth)
    count = len(lrs)

    def repeated(tree):
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), tree)

    state = (params, stats, optimizer.init(params))
    # Copies, because the step takes the buffers over, and those of the encoder are not ours.
    state = repeated(state) if config.frozen else jax.tree.map(jnp.copy, state)
    frozen = network.backbone if config.frozen else {}
    whole = sharding.replicated(mesh)
    state, frozen, rates = (
        jax.device_put(tree, whole) for tree in (state, frozen, np.asarray(lrs, np.float32))
    )
    take = _step(network, config, optimizer, steps, jax.random.fold_in(key, 1), mesh)
    losses, told = [], time.monotonic()
    for index, batch in enumerate(batches):
        state, loss = take(state, frozen, rates, sharding.put_batch(batch, mesh), index)
        losses.append(loss)
        if index > _AHEAD:  # else all batches would go to the device at once
            jax.block_until_ready(losses[index - _AHEAD])
        if time.monotonic() - told > _TOLD and distributed.is_first():
            values = ", ".join(f"{x:.3f}" for x in np.asarray(loss))
            print(f"  segment: step {index + 1} of {steps}, loss {values}", flush=True)
            told = time.monotonic()
    params, stats = jax.tree.map(np.asarray, state[:2])
    curve = np.stack([np.asarray(x) for x in losses], axis=1)
    if not config.frozen:
        return [Trained(params, stats, curve[0])]

    def of(i):
        return Trained(*(jax.tree.map(lambda x: x[i], tree) for tree in (params, stats)), curve[i])

    return [of(i) for i in range(count)]


def _step(network, config, optimizer, steps, key, mesh):
    """step(state, frozen, rates, batch, index) -> (state, loss [learning rates]), compiled."""

    def loss(params, stats, maps, masks, keys):
        out, stats = network.head.apply(params["head"], stats, maps, train=True, keys=keys)
        return loss_of(config, out, masks), stats

    def whole_loss(params, stats, images, masks, keys):
        backbone = {name: tree for name, tree in params.items() if name != "head"}
        return loss(params, stats, network.maps(backbone, images, keys[0]), masks, keys[1])

    def advance(state, rate, index, inputs, objective):
        params, stats, opt_state = state
        gradient = jax.value_and_grad(objective, has_aux=True)
        (value, stats), grads = gradient(params, stats, *inputs)
        lr = optimizer_lib.learning_rate(config, steps, index, rate)
        params, opt_state = optimizer.update(grads, opt_state, params, lr)
        return (params, stats, opt_state), value

    def step(state, frozen, rates, batch, index):
        images = batch["image"].astype(jnp.float32) / 255
        masks = batch["mask"].astype(jnp.int32)
        drawn = jax.random.split(jax.random.fold_in(key, index), 2 * len(images))
        keys = drawn[: len(images)], drawn[len(images) :]
        if not config.frozen:
            inputs = images, masks, keys
            state, value = advance(state, rates[0], index, inputs, whole_loss)
            return state, value[None]
        maps = jax.lax.stop_gradient(network.maps(frozen, images, keys[0]))

        def one(state, rate):
            return advance(state, rate, index, (maps, masks, keys[1]), loss)

        return jax.vmap(one)(state, rates)

    def on_mesh(*args):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return step(*args)

    whole, rows = sharding.replicated(mesh), sharding.batch_sharding(mesh)
    return jax.jit(
        on_mesh,
        donate_argnums=0,
        in_shardings=(whole, whole, whole, rows, None),
        out_shardings=whole,
    )
