"""STELLAR's objective: balance of the targets, weights, and what must not change."""

import chex
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from ssl_jax import ops
from ssl_jax.losses.stellar import match_meters
from tests.losses import cases, reference
from tests.losses.cases import HEAT, MASKED_R, K, R
from tests.losses.reference import close

B = 3
CODES = ("codes", "no clustering", "no masked")


def make(*parts, seed=0, scale=1.0):
    return cases.make("stellar", seed, scale, parts=parts)


def terms_of(x, **settings):
    return cases.run("stellar", x, **settings)[0]


def pick(x, *names):
    return {name: x[name] for name in names}


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


SCALES = st.sampled_from((0.1, 1.0, 3.0))  # of the logits, and of the tokens


@hypothesis.given(scale=SCALES, seed=st.integers(0, 1000))
def test_order_of_the_tokens_does_not_matter(scale, seed):
    """No term moves with the queries, those of the masked views included."""
    x, rng = make(seed=seed, scale=scale), np.random.default_rng(seed)
    order, masked_order = rng.permutation(R), rng.permutation(MASKED_R)
    moved = x | {name: x[name][:, order] for name in ("token_logits", "tokens")}
    masked = ("masked_token_logits", "masked_tokens")
    moved |= {name: x[name][:, :, masked_order] for name in masked}
    moved["matches"] = np.argsort(order)[x["matches"][:, :, masked_order]]
    terms, again = terms_of(x), terms_of(moved)
    chex.assert_tree_all_finite(terms)
    assert set(again) == set(terms)
    for name in terms:
        close(again[name], terms[name])


@hypothesis.given(scale=SCALES, size=st.sampled_from((0.1, 1.0, 10.0)), seed=st.integers(0, 1000))
def test_a_constant_per_prototype_changes_no_target(scale, size, seed):
    """The shifted logits, up to about 50 / T, are rounded to 1e-5."""
    given = make("teacher", seed=seed, scale=scale)
    x = pick(given, "token_logits", "token_matches", "teacher_token_logits")
    shift = (size * np.random.default_rng(seed).normal(size=K)).astype(np.float32)
    heat = {"target_temperature": 0.3, "temperature": 0.5}
    moved = terms_of(x | {"teacher_token_logits": x["teacher_token_logits"] + shift}, **heat)
    for name, value in terms_of(x, **heat).items():
        close(moved[name], value, relative=2e-5, absolute=2e-5)


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_bounds_of_the_cross_entropy(scale):
    """Uniform predictions cost log K, the target itself its entropy, any other prediction more."""
    given = make("teacher", scale=scale)
    x = {
        "teacher_token_logits": given["teacher_token_logits"][:, :R],
        "token_matches": np.tile(np.arange(R), (B, 1)),
    }
    q = reference.sinkhorn(x["teacher_token_logits"].astype(np.float64), HEAT["target_temperature"])

    def cost(logits):
        return terms_of({"token_logits": logits.astype(np.float32), **x})

    close(cost(np.zeros((B, R, K)))["cluster_loss"], np.log(K))
    best, other = cost(HEAT["temperature"] * np.log(q)), cost(given["token_logits"])
    close(best["cluster_loss"], best["token_teacher_entropy"])
    assert other["cluster_loss"] > best["cluster_loss"]


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
