"""STELLAR's objective: balance of the targets, weights of zero, codes, meters of a matching."""

import chex
import jax.numpy as jnp
import numpy as np

from ssl_jax import ops
from ssl_jax.losses import match_meters, reconstruction
from tests.losses import cases, reference
from tests.losses.cases import K
from tests.losses.reference import close

B = 3
CODES = ("codes", "no clustering", "no masked")


def make(*parts, seed=0, scale=1.0):
    return cases.make("stellar", seed, scale, parts=parts)


def terms_of(x, **settings):
    return cases.run("stellar", x, **settings)[0]


def test_a_weight_of_zero_takes_a_part_out_even_if_it_is_not_finite():
    x = make("no clustering", "no masked")
    broken = x | {"reconstruction": np.full_like(x["reconstruction"], np.inf)}
    weights = {"reconstruction": 0, "koleo": 1}  # known numbers
    terms, gradients = cases.run("stellar", broken, weights=Frozen(weights))
    close(terms["loss"], reference.koleo(x["tokens"].astype(np.float64)))
    assert not np.any(gradients["reconstruction"]) and np.isinf(terms["reconstruction_loss"])


class Frozen(dict):
    """Weights that are no arguments of the program."""

    def __hash__(self):
        return hash(tuple(self.items()))


def test_balance_is_over_all_tokens_of_the_batch():
    """Two copies of every image change nothing but the column sums; another image in the batch does
    change a target.
    """
    logits = make()["token_logits"]

    def cluster(logits):
        return float(terms_of({"token_logits": logits})["cluster_loss"])

    together = cluster(logits)
    close(cluster(np.concatenate([logits] * 2)), together)
    assert abs(np.mean([cluster(logits[b : b + 1]) for b in range(B)]) - together) > 1e-3


def test_a_code_that_does_not_exist_is_no_silent_target():
    x = make(*CODES)
    x["target"][1, 2] = K
    assert np.isnan(terms_of(x)["loss"])


def test_single_token_single_image_single_view():
    x = make()
    one = {name: x[name][:1, :1] for name in ("token_logits", "tokens")}
    one |= {name: x[name][:1, :1, :1] for name in ("masked_token_logits", "masked_tokens")}
    terms = terms_of(one | {"matches": np.zeros((1, 1, 1), int)})
    chex.assert_tree_all_finite(terms)
    assert terms["koleo"] == 0  # no neighbour


def test_meters_of_a_matching_by_hand():
    """Two tokens that share a target of three, at distances of 1 and 0."""
    cost = np.array([[1.0, 3.0, 2.0], [0.0, 4.0, 2.0]])
    meters = match_meters(ops.Alignment(np.array([0, 0]), cost, plan=cost))
    close(meters["match_cost"], 0.5)
    close(meters["match_contrast"], 0.5 / 2)
    close(meters["match_distinct"], 0.5)


def test_codes_that_are_none_give_nan():
    predicted = jnp.array([[[0.0, 0.0, 5.0]]])
    for code, finite in ((2, True), (-1, False), (3, False)):
        loss = reconstruction(predicted, jnp.array([[code]]))["reconstruction_loss"]
        assert np.isfinite(loss) == finite
