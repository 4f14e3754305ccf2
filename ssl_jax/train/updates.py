"""Update rules: {name: (section `optim`, learning rate, weight decay, tree of decayed leaves) ->
optax transformation}.

The learning rate scales the decay in all of them. sgd and lars add the decay to the gradient,
before momentum; the others add it to the update.
"""

import math

import jax
import jax.numpy as jnp
import optax


def _adamw(config, lr, weight_decay, decayed):
    return optax.chain(
        _scale_by_adam(config.beta1, config.beta2, config.eps),
        optax.add_decayed_weights(weight_decay, decayed),
        optax.scale_by_learning_rate(lr),
    )


def _lars(config, lr, weight_decay, decayed):
    # As in the code of SimCLR and BYOL, the trust ratio scales only the parameters that decay.
    return optax.lars(lr, weight_decay, decayed, trust_ratio_mask=decayed, momentum=config.beta1)


def _lion(config, lr, weight_decay, decayed):
    return optax.lion(lr, config.beta1, config.beta2, weight_decay=weight_decay, mask=decayed)


def _sgd(config, lr, weight_decay, decayed):
    return optax.chain(
        optax.add_decayed_weights(weight_decay, decayed), optax.sgd(lr, momentum=config.beta1)
    )


def _muon(config, lr, weight_decay, decayed):
    def dimensions(x):
        # None selects Adam: a token [1, d] or a gain [1, K] has only one direction.
        return optax.contrib.MuonDimensionNumbers() if x.ndim == 2 and min(x.shape) > 1 else None

    # 0.2 makes the root mean square of an update about that of Adam's, so that lr and weight decay
    # carry over (Liu et al. 2025, "Muon is scalable for LLM training").
    direction = optax.contrib.muon(
        -1.0,  # returns the direction itself, to which decay is added
        beta=config.beta1,
        eps=config.eps,
        adam_b1=config.beta1,
        adam_b2=config.beta2,
        muon_weight_dimension_numbers=lambda params: jax.tree.map(dimensions, params),
        consistent_rms=0.2,
    )
    return optax.chain(
        direction,
        optax.add_decayed_weights(weight_decay, decayed),
        optax.scale_by_learning_rate(lr),
    )


def _scale_by_adam(beta1, beta2, eps):
    """optax.scale_by_adam, but with a bias correction that is exact in float32.

    optax rounds beta before computing 1 - beta^t. In the first hundred updates, its steps are off
    by up to 1e-5 for beta2 = 0.999 and 1e-4 for 0.9999; these by less than 1e-6.
    """
    adam = optax.scale_by_adam(beta1, beta2, eps)

    def update(grads, state, params=None):
        _, state = adam.update(grads, state, params)
        bias1, bias2 = (_bias_correction(beta, state.count) for beta in (beta1, beta2))
        steps = jax.tree.map(
            lambda m, v: (m / bias1) / (jnp.sqrt(v / bias2) + eps), state.mu, state.nu
        )
        return steps, state

    return optax.GradientTransformation(adam.init, update)


def _bias_correction(beta: float, count):
    """1 - beta^count without cancellation."""
    return 1.0 if beta == 0 else -jnp.expm1(count * math.log(beta))


TRANSFORMATIONS = {"adamw": _adamw, "lars": _lars, "lion": _lion, "muon": _muon, "sgd": _sgd}
