"""Every family: each of our parameters gets exactly the tensor it should, and the network computes
what theirs does.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import config as config_lib
from ssl_jax import convert, methods, settings, trees
from ssl_jax.config import InputError
from ssl_jax.convert import rows, tables, torch_in
from ssl_jax.models import position, vit
from tests.convert import published
from tests.convert.published import DEPTH, GRID, HEADS, HIDDEN, PATCH, D, Numbers, prefixed

SIZES = ((16, 16), (24, 8), (8, 32))  # native, others


@pytest.fixture
def saved(tmp_path):
    """Writes tensors to a file and returns its path."""

    def save(tensors, name="weights.npz"):
        np.savez(tmp_path / name, **tensors)
        return tmp_path / name

    return save


@functools.cache
def shapes(name: str, **changes):
    """The parameter tree of a method with the encoder of `published`, as shapes. changes: of its
    section.
    """
    c = settings.base_config(name)
    c.model.update(
        dict(
            size="custom",
            width=D,
            depth=DEPTH,
            heads=HEADS,
            patch=PATCH,
            image_size=PATCH * GRID,
            mlp_ratio=HIDDEN / D,
        )
    )
    c.update_from_flattened_dict(dict(CHANGES[name]))
    c.update_from_flattened_dict({f"{name}.{key}": value for key, value in changes.items()})
    method = methods.make(config_lib.FrozenConfigDict(c))
    params = jax.eval_shape(lambda: method.init(jax.random.key(0))[0])
    constants = jax.eval_shape(method.constants)
    return params | ({"constants": constants} if constants else {})


HEAD = {"head_hidden": 32, "head_bottleneck": 16, "prototypes": 24}
CHANGES = {
    "dino": {f"dino.{key}": value for key, value in HEAD.items()},
    "flsl": {
        **{f"flsl.{key}": value for key, value in HEAD.items()},
        "model.cls": False,
        "model.position": "sincos",
    },
    "cribo": {f"cribo.{key}": value for key, value in HEAD.items()} | {"cribo.memory": 4},
    "ibot": {
        "ibot.head_hidden": 32,
        "ibot.head_bottleneck": 16,
        "ibot.cls.prototypes": 24,
        "views.mask": "block",
    },
    "sop": {
        "sop.head_hidden": 32,
        "sop.head_out": 16,
        "views.mask": "block",
        "sop.cls.memory": 64,
        "sop.cls.anchors": 8,
    },
    "mae": {"mae.decoder_width": 24, "mae.decoder_depth": 2, "mae.decoder_heads": 2},
    "stellar": {
        "model.queries": 3,
        "stellar.prototypes": 6,
        "stellar.head_hidden": 32,
        "stellar.head_out": 16,
        "stellar.decoder_width": 24,
        "stellar.decoder_depth": 2,
        "stellar.decoder_heads": 2,
    },
}


def expected_encoder(t: dict, *, cls=True) -> dict:
    """{our path: array} of an encoder under timm's names, written out."""
    e = {
        # Row (y, x, channel) of the kernel sees channel `channel` of pixel (y, x).
        "patch/kernel": np.stack(
            [
                t["patch_embed.proj.weight"][:, c, y, x]
                for y in range(PATCH)
                for x in range(PATCH)
                for c in range(3)
            ]
        ),
        "patch/bias": t["patch_embed.proj.bias"],
        "position": t["pos_embed"][0],
        "norm/scale": t["norm.weight"],
        "norm/bias": t["norm.bias"],
    }
    if cls:
        e["cls"] = t["cls_token"][0]
    return {f"backbone/{path}": array for path, array in e.items()} | expected_blocks(
        t, "blocks", "backbone/blocks", DEPTH
    )


def expected_blocks(t: dict, name: str, path: str, depth: int) -> dict:
    e = {}
    for i in range(depth):
        for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
            e[f"{path}/{i}/{part.replace('.', '/')}/kernel"] = t[f"{name}.{i}.{part}.weight"].T
            e[f"{path}/{i}/{part.replace('.', '/')}/bias"] = t[f"{name}.{i}.{part}.bias"]
        for part in ("norm1", "norm2"):
            e[f"{path}/{i}/{part}/scale"] = t[f"{name}.{i}.{part}.weight"]
            e[f"{path}/{i}/{part}/bias"] = t[f"{name}.{i}.{part}.bias"]
    return e


def expected_mlp(t: dict, path: str) -> dict:
    e = {}
    for ours, theirs in enumerate((0, 2, 4)):
        e |= {
            f"{path}/{ours}/kernel": t[f"head.mlp.{theirs}.weight"].T,
            f"{path}/{ours}/bias": t[f"head.mlp.{theirs}.bias"],
        }
    return e


def expected_last(t: dict, name: str, path: str) -> dict:
    return {
        f"{path}/direction": t[f"head.{name}.weight_v"].T,
        f"{path}/gain": t[f"head.{name}.weight_g"].T,
    }


def assert_holds(tree, expected: dict) -> None:
    got = trees.per_block(tree)
    assert set(got) == set(expected)
    for path, array in expected.items():
        np.testing.assert_array_equal(got[path], array, err_msg=path)


# --- one test per family


def test_dino_student_and_teacher(saved):
    student, teacher = (
        {**published.encoder(seed), **published.dino_head(seed + 10)} for seed in (0, 1)
    )

    def split(t):
        return {
            f"{'head' if n.startswith('head') else 'backbone'}.{n.removeprefix('head.')}": x
            for n, x in t.items()
        }

    path = saved(prefixed("student.module.", split(student)) | prefixed("teacher.", split(teacher)))
    for part, t in (("student", student), ("teacher", teacher)):
        params, report = convert.load_torch(path, shapes("dino"), part=part)
        assert_holds(
            params,
            expected_encoder(t)
            | expected_mlp(t, "head/mlp")
            | expected_last(t, "last_layer", "head/last"),
        )
        assert not report.left and not report.missing and not report.notes
        assert report.matched["head/last/gain"].startswith(part) and report.matched[
            "head/last/gain"
        ].endswith("head.last_layer.weight_g")


def test_weight_norm_under_its_new_names_and_multiplied_in(saved):
    t = published.encoder() | published.dino_head()

    def renamed(n):
        return (
            n.replace("_g", "s.weight.original0")
            .replace("_v", "s.weight.original1")
            .replace("weights", "parametrizations")
        )

    new = {renamed(n) if "last_layer" in n else n: x for n, x in t.items()}
    assert "head.last_layer.parametrizations.weight.original0" in new
    wanted = (
        expected_encoder(t)
        | expected_mlp(t, "head/mlp")
        | expected_last(t, "last_layer", "head/last")
    )
    assert_holds(convert.load_torch(saved(new), shapes("dino"))[0], wanted)

    g, v = t.pop("head.last_layer.weight_g"), t.pop("head.last_layer.weight_v")
    t["head.last_layer.weight"] = np.abs(g) * v / np.linalg.norm(v, axis=1, keepdims=True)
    head = convert.load_torch(saved(t), shapes("dino"))[0]["head"]["last"]
    np.testing.assert_allclose(head["gain"], np.abs(g).T, rtol=1e-6)
    np.testing.assert_allclose(head["direction"], t["head.last_layer.weight"].T)


def test_sop_has_no_last_layer_and_a_mask_vector(saved):
    t = published.encoder() | published.dino_head(layers=()) | {"masked_embed": Numbers(5)(1, D)}
    params, report = convert.load_torch(saved(prefixed("backbone.", t)), shapes("sop"))
    assert_holds(
        params,
        expected_encoder(t)
        | expected_mlp(t, "head/mlp")
        | {"backbone/mask_token": t["masked_embed"]},
    )
    assert not report.left and not report.missing


@pytest.mark.parametrize("shared", ["all", "mlp"])
def test_ibot_with_one_last_layer_or_two(saved, shared):
    t = (
        published.encoder()
        | published.dino_head(layers=("last_layer", "last_layer2"))
        | {"masked_embed": Numbers(5)(1, D)}
    )
    wanted = (
        expected_encoder(t)
        | expected_mlp(t, "head/mlp")
        | expected_last(t, "last_layer", "head/last")
    )
    wanted["backbone/mask_token"] = t["masked_embed"]
    params, report = convert.load_torch(saved(t), shapes("ibot", shared_head=shared))
    if shared == "all":  # the code stores one layer under both names
        assert set(report.left) == {"head.last_layer2.weight_g", "head.last_layer2.weight_v"}
    else:
        wanted |= expected_last(t, "last_layer2", "patch_head/last")
    assert_holds(params, wanted)


def test_cribo(saved):
    t = published.encoder() | published.dino_head(layers=("last_layer", "last_layer_c"))
    params, report = convert.load_torch(saved(prefixed("teacher.", t)), shapes("cribo"))
    wanted = expected_encoder(t) | expected_mlp(t, "head/trunk/mlp")
    wanted |= expected_last(t, "last_layer", "head/images") | expected_last(
        t, "last_layer_c", "head/objects"
    )
    assert_holds(params, wanted)
    assert not report.left and not report.missing


def test_flsl_computes_its_fixed_codes(saved):
    t = published.encoder(cls=False) | published.dino_head()
    t["pos_embed"] = position.sincos_2d(GRID, D)[None].astype(np.float32)
    params, report = convert.load_torch(saved(t), shapes("flsl"))
    wanted = (
        expected_encoder(t, cls=False)
        | expected_mlp(t, "head/mlp")
        | expected_last(t, "last_layer", "head/last")
    )
    del wanted["backbone/position"]
    assert_holds(params, wanted)
    assert not report.left and not report.missing
    t["pos_embed"] = t["pos_embed"][:, ::-1]
    with pytest.raises(InputError, match="pos_embed are not the fixed sine-cosine codes"):
        convert.load_torch(saved(t), shapes("flsl"))


def mae_decoder(numbers):
    t = published.linear(numbers, "decoder_embed", D, 24) | {"mask_token": numbers(1, 1, 24)}
    t |= published.timm_blocks(numbers, "decoder_blocks", 2, 24, 96) | published.norm(
        numbers, "decoder_norm", 24
    )
    t["decoder_pos_embed"] = np.pad(position.sincos_2d(GRID, 24), ((1, 0), (0, 0)))[None].astype(
        np.float32
    )
    return t | published.linear(numbers, "decoder_pred", 24, 3 * PATCH**2)


def test_mae(saved):
    t = published.encoder() | mae_decoder(Numbers(3))
    t["pos_embed"][0] = np.pad(position.sincos_2d(GRID, D), ((1, 0), (0, 0)))
    params, report = convert.load_torch(saved(prefixed("model.", t)), shapes("mae"))
    assert not report.left and not report.missing
    wanted = expected_encoder(t) | expected_blocks(t, "decoder_blocks", "decoder/blocks", 2)
    for name, path in (("decoder_embed", "decoder/embed"), ("decoder_pred", "decoder/out")):
        wanted |= {f"{path}/kernel": t[f"{name}.weight"].T, f"{path}/bias": t[f"{name}.bias"]}
    wanted |= {
        "decoder/norm/scale": t["decoder_norm.weight"],
        "decoder/norm/bias": t["decoder_norm.bias"],
    }
    wanted["decoder/mask_token"] = t["mask_token"][0]
    assert_holds(params, {path: wanted[path] for path in trees.shapes(shapes("mae"))})


def test_a_decoder_without_positions_is_left(saved):
    """ViTMAE of transformers, trained from scratch: its decoder never had position codes."""
    t = published.encoder() | mae_decoder(Numbers(3))
    t["pos_embed"][0] = np.pad(position.sincos_2d(GRID, D), ((1, 0), (0, 0)))
    t["decoder_pos_embed"] *= 0
    params, report = convert.load_torch(saved(t), shapes("mae"))
    assert "decoder was trained without position codes there" in str(report)
    assert set(report.missing) == {p for p in trees.shapes(shapes("mae")) if "decoder/" in p}
    assert params["decoder"] == shapes("mae")["decoder"]
    t["decoder_pos_embed"] += 0.1
    with pytest.raises(InputError, match="not the fixed sine-cosine codes"):
        convert.load_torch(saved(t), shapes("mae"))


def as_timm(t: dict, prefix: str = "") -> dict:
    """Hugging Face's encoder under timm's names, for `expected_encoder`."""
    out = {
        "cls_token": t[f"{prefix}embeddings.cls_token"],
        "pos_embed": t[f"{prefix}embeddings.position_embeddings"],
        "norm.weight": t[f"{prefix}layernorm.weight"],
        "norm.bias": t[f"{prefix}layernorm.bias"],
    }
    for kind in ("weight", "bias"):
        out[f"patch_embed.proj.{kind}"] = t[
            f"{prefix}embeddings.patch_embeddings.projection.{kind}"
        ]
        out |= blocks_as_timm(t, f"{prefix}encoder.layer", "blocks", kind)
    return out


def blocks_as_timm(t: dict, theirs: str, name: str, kind: str) -> dict:
    out = {}
    for i in range(2):

        def of(part, i=i):
            return t[f"{theirs}.{i}.{part}.{kind}"]

        out[f"{name}.{i}.attn.qkv.{kind}"] = np.concatenate(
            [of(f"attention.attention.{part}") for part in ("query", "key", "value")]
        )
        pairs = {
            "attn.proj": "attention.output.dense",
            "mlp.fc1": "intermediate.dense",
            "mlp.fc2": "output.dense",
            "norm1": "layernorm_before",
            "norm2": "layernorm_after",
        }
        out |= {f"{name}.{i}.{ours}.{kind}": of(part) for ours, part in pairs.items()}
    return out


@pytest.mark.parametrize("prefix", ["", "vit."])
def test_hugging_face(saved, prefix):
    t = published.hf_encoder(prefix=prefix)
    params, report = convert.load_torch(saved(t), {"backbone": shapes("dino")["backbone"]})
    assert_holds(params, expected_encoder(as_timm(t, prefix)))
    assert not report.left and not report.missing
    query = report.matched["backbone/blocks/0/attn/qkv/kernel"]
    assert query == " + ".join(
        f"{prefix}encoder.layer.0.attention.attention.{part}.weight"
        for part in ("query", "key", "value")
    )


def test_three_names_or_none_make_one_matrix(saved):
    t = published.hf_encoder()
    del t["encoder.layer.1.attention.attention.key.weight"]
    with pytest.raises(
        InputError,
        match=r"layer\.1.*query.weight.*are not all 3 pieces of backbone/blocks/1/attn/qkv/kernel",
    ):
        convert.load_torch(saved(t), {"backbone": shapes("dino")["backbone"]})


def test_order_of_names_does_not_matter(saved):
    t = published.hf_encoder()
    tree = {"backbone": shapes("dino")["backbone"]}
    one, two = (convert.load_torch(saved(x), tree)[0] for x in (t, dict(reversed(t.items()))))
    jax.tree.map(np.testing.assert_array_equal, one, two)


def stellar(seed: int, target: str, teacher: bool = False) -> dict:
    numbers = Numbers(seed)
    t = prefixed(
        "encoder.", published.hf_encoder(seed) | published.linear(numbers, "pooler.dense", D, D)
    )
    t["sparse_tokens"] = numbers(3, D)
    heads = ("clustering_head", "cls_cluster_head")
    if teacher:
        t, heads = prefixed("teacher_", t), ("teacher_head", "teacher_cls_head")
    for head in heads:
        t |= published.linear(numbers, f"{head}.predictor.layers.0", D, 32)
        t |= published.linear(numbers, f"{head}.predictor.layers.2", 32, 16)
        t[f"{head}.layer.weight"] = numbers(6, 16)
    if teacher:
        return t
    t |= published.linear(numbers, "dense_proj", D, D) | published.linear(
        numbers, "sparse_proj", D, D
    )
    t |= published.linear(numbers, "decoder_proj", D, 24) | {
        "position_embedding.positional_encoding_gaussian_matrix": numbers(2, 12)
    }
    t |= published.hf_blocks(numbers, "decoder.encoder.layer", 2, 24, 96) | published.norm(
        numbers, "decoder.layernorm", 24
    )
    if target == "pixel":  # ConvTranspose2d
        return t | {
            "reconstruction_head.weight": numbers(24, 3, PATCH, PATCH),
            "reconstruction_head.bias": numbers(3),
        }
    return t | published.linear(numbers, "reconstruction_head", 24, 1024)


def expected_stellar_shared(
    t: dict, prefix="", heads=("clustering_head", "cls_cluster_head")
) -> dict:
    wanted = expected_encoder(as_timm(t, f"{prefix}encoder.")) | {
        "backbone/queries": t[f"{prefix}sparse_tokens"]
    }
    for head, path in zip(heads, ("token_head", "cls_head")):
        for ours, theirs in ((0, 0), (1, 2)):
            wanted[f"{path}/projection/mlp/{ours}/kernel"] = t[
                f"{head}.predictor.layers.{theirs}.weight"
            ].T
            wanted[f"{path}/projection/mlp/{ours}/bias"] = t[
                f"{head}.predictor.layers.{theirs}.bias"
            ]
        wanted[f"{path}/prototypes"] = t[f"{head}.layer.weight"]
    return wanted


def expected_stellar(t: dict) -> dict:
    wanted = expected_stellar_shared(t)
    for name, path in (
        ("dense_proj", "factorise/dense"),
        ("sparse_proj", "factorise/sparse"),
        ("decoder_proj", "decoder/embed"),
    ):
        wanted |= {f"{path}/kernel": t[f"{name}.weight"].T, f"{path}/bias": t[f"{name}.bias"]}
    blocks = {}
    for kind in ("weight", "bias"):
        blocks |= blocks_as_timm(t, "decoder.encoder.layer", "blocks", kind)
    wanted |= expected_blocks(blocks, "blocks", "decoder/blocks", 2)
    wanted |= {
        "decoder/norm/scale": t["decoder.layernorm.weight"],
        "decoder/norm/bias": t["decoder.layernorm.bias"],
    }
    weight = t["reconstruction_head.weight"]
    wanted["decoder/out/kernel"] = np.stack(
        [weight[:, c, y, x] for y in range(PATCH) for x in range(PATCH) for c in range(3)], axis=1
    )
    wanted["decoder/out/bias"] = np.array(
        [t["reconstruction_head.bias"][c] for _ in range(PATCH**2) for c in range(3)]
    )
    wanted["constants/fourier"] = t["position_embedding.positional_encoding_gaussian_matrix"]
    return wanted


def test_stellar(saved):
    t = stellar(0, "pixel")
    params, report = convert.load_torch(saved(prefixed("model.", t)), shapes("stellar"))
    assert_holds(params, expected_stellar(t))
    assert (
        set(report.left) == {"model.encoder.pooler.dense.weight", "model.encoder.pooler.dense.bias"}
        and not report.missing
    )


def test_stellar_with_a_teacher(saved):
    student, teacher = stellar(0, "pixel"), stellar(1, "pixel", teacher=True)
    path = saved(student | teacher)
    assert_holds(
        convert.load_torch(path, shapes("stellar"), part="student")[0], expected_stellar(student)
    )
    taught = {
        name: tree
        for name, tree in shapes("stellar").items()
        if name in ("backbone", "token_head", "cls_head")
    }
    wanted = expected_stellar_shared(teacher, "teacher_", ("teacher_head", "teacher_cls_head"))
    assert_holds(convert.load_torch(path, taught, part="teacher")[0], wanted)


def test_stellar_with_codes_as_target(saved):
    t = stellar(0, "vq")
    weights = torch_in.load(saved(t)).tree("student")
    np.testing.assert_array_equal(
        weights.arrays["decoder/out/kernel"], t["reconstruction_head.weight"].T
    )
    assert weights.arrays["decoder/out/bias"].shape == (1024,)
    with pytest.raises(
        InputError,
        match=(
            r"reconstruction_head\.\w+ would give decoder/out/.*another patch side or"
            r" reconstruction target"
        ),
    ):
        convert.load_torch(saved(t), shapes("stellar"))


# --- features


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("family", ["dino", "mae", "hf"])
def test_features(saved, family, size):
    """At the native size and at others, against NumPy in float64 on PyTorch's layouts."""
    t = published.hf_encoder() if family == "hf" else published.encoder()
    config, params, report = convert.load_vit(saved(t), family=family, heads=HEADS)
    assert config.norm_eps == (1e-12 if family == "hf" else 1e-6) and not report.missing
    images = np.random.default_rng(0).random((2, *size, 3))
    seen = vit.vit(config).apply(params, jnp.asarray(images, jnp.float32))
    offset = 0.1 if family == "dino" else 0.0
    names = "hf" if family == "hf" else "timm"
    wanted = published.forward(t, images, offset=offset, eps=config.norm_eps, names=names)
    np.testing.assert_allclose(
        np.concatenate([seen.cls[:, None], seen.patches], axis=1), wanted, atol=1e-4
    )


def test_the_shape_of_an_encoder_is_read_off_its_weights(saved):
    t = published.encoder(depth=3, d=128, patch=2, grid=5)
    config, params, _ = convert.load_vit(saved(t), family="dino")
    assert (
        config.width,
        config.depth,
        config.heads,
        config.patch,
        config.image_size,
        config.hidden,
    ) == (128, 3, 2, 2, 10, 256)
    assert config.cls and not config.queries and not config.mask_token
    config, params, _ = convert.load_vit(
        saved(published.encoder(cls=False)), family="mae", heads=HEADS
    )
    assert not config.cls and "cls" not in params


def test_an_encoder_alone_under_shared_names_needs_a_family(saved):
    path = saved(published.encoder())
    with pytest.raises(InputError, match='give family="dino", "mae" or "timm"'):
        convert.load_vit(path)
    rules = {
        family: convert.load_vit(path, family=family, heads=HEADS)[0]
        for family in ("dino", "mae", "timm")
    }
    assert [(c.position_resize, c.resize_kernel) for c in rules.values()] == [
        ("dino_offset", "keys-0.75"),
        ("exact", "keys-0.75"),
        ("exact", "antialias-0.5"),
    ]
    with pytest.raises(
        InputError, match='unknown family of checkpoints "dinno"; did you mean "dino"'
    ):
        convert.load_vit(path, family="dinno")


# --- names

RECOGNISED = {
    "dino": published.encoder() | published.dino_head(),
    "cribo": published.encoder() | published.dino_head(layers=("last_layer", "last_layer_c")),
    "timm": published.encoder() | {"head.weight": Numbers(0)(5, D)},
    "vit": published.encoder(),
    "mae": published.encoder() | mae_decoder(Numbers(3)),
    "hf": published.hf_encoder(prefix="vit."),
    "dinov2": published.dinov2(),
    "dinov2_registers": published.dinov2(registers=4),
    "hf_dinov2": published.hf_dinov2(),
    "hf_dinov2_registers": published.hf_dinov2(registers=4),
    "stellar": stellar(0, "pixel"),
}


@pytest.mark.parametrize(
    "wrapping",
    [
        "",
        "module.",
        "state_dict.",
        "model.",
        "state_dict.module.",
        "_orig_mod.",
        "module.backbone.",
    ],
)
@pytest.mark.parametrize("family", RECOGNISED)
def test_recognised_however_wrapped(family, wrapping):
    if wrapping.endswith("backbone.") and family in ("hf", "stellar"):
        wrapping = "module."
    found = torch_in.translate(prefixed(wrapping, RECOGNISED[family]))
    assert found.family == family and set(found.trees) == {""}
    plain = torch_in.translate(RECOGNISED[family], family=family).tree("")
    assert set(found.tree("").arrays) == set(plain.arrays)


def test_every_family_is_covered():
    assert set(RECOGNISED) == set(tables.FAMILIES)


@pytest.mark.parametrize("part", ["student", "teacher"])
def test_an_encoder_called_student_or_teacher_is_of_the_dino_family(part):
    found = torch_in.translate(prefixed(f"{part}.backbone.", published.encoder()))
    assert found.family == "dino" and set(found.trees) == {part}
    assert found.tree("student") is found.tree("teacher")  # the one there is


def test_what_is_no_weight_is_not_reported():
    t = prefixed("teacher.", published.encoder())
    one = np.ones(1, np.float32)
    found = torch_in.translate(
        t | {"optimizer.state.0.exp_avg": one, "dino_loss.center": one, "fp16_scaler.x": one}
    )
    assert set(found.trees) == {"teacher"} and not found.tree("teacher").left


def test_averaged_weights_are_the_teacher():
    t = published.encoder() | {"head.weight": Numbers(0)(5, D)}
    found = torch_in.translate(
        prefixed("state_dict.", t) | prefixed("state_dict_ema.", {n: x + 1 for n, x in t.items()})
    )
    assert set(found.trees) == {"", "teacher"}
    np.testing.assert_array_equal(
        found.tree("student").arrays["backbone/norm/bias"], t["norm.bias"]
    )
    np.testing.assert_array_equal(
        found.tree("teacher").arrays["backbone/norm/bias"], t["norm.bias"] + 1
    )


def test_two_trees_that_nothing_tells_apart():
    t = published.encoder()
    with pytest.raises(
        InputError,
        match=(
            r"two tensors for cls_token: model\.cls_token and state_dict\.cls_token; save one of"
            r" their trees"
        ),
    ):
        torch_in.translate(prefixed("model.", t) | prefixed("state_dict.", t))


def test_what_nobody_can_check_is_said(saved):
    _, _, report = convert.load_vit(saved(published.hf_encoder()), heads=HEADS)
    assert len(report.notes) == 1 and "trained with 0.5" in str(report)


def test_counters_and_buffers_are_left():
    t = published.encoder() | {
        "head.mlp.num_batches_tracked": np.array(3),
        "queue": np.ones((2, 2), np.float32),
    }
    assert set(torch_in.translate(t).tree("").left) == {"head.mlp.num_batches_tracked", "queue"}


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_other_precisions_become_float32(dtype):
    t = {
        name: tensor.astype(jnp.bfloat16 if dtype == "bfloat16" else dtype)
        for name, tensor in published.encoder().items()
    }
    arrays = torch_in.translate(t).tree("").arrays
    assert arrays and all(array.dtype == np.float32 for array in arrays.values())


MORE = "blocks.0.attn.relative_position norm_pre.weight dist_token blocks.1.gamma_1"


@pytest.mark.parametrize("name", MORE.split())
def test_a_network_with_more_parts_than_ours_is_refused(name):
    with pytest.raises(
        InputError, match=re.escape(re.sub(r"\.\d", ".*", name)) + ", so its features would differ"
    ):
        torch_in.translate(published.encoder() | {f"{name}": np.ones((1, 1, D), np.float32)})


UNLIKE = {  # names of DINOv2's and DINOv3's code, of transformers and timm
    "blocks.0.mlp.w12.weight": "SwiGLU",
    "encoder.layer.0.mlp.weights_in.weight": "SwiGLU",
    "layer.0.mlp.gate_proj.weight": "SwiGLU",
    "teacher.backbone.blocks.0.0.mlp.w3.bias": "SwiGLU",
    "rope_embed.periods": "RoPE",
    "storage_tokens": "RoPE",
    "embeddings.patch_embeddings.weight": "RoPE",
    "blocks.1.attn.q_norm.weight": "norms of queries and keys",
}


@pytest.mark.parametrize(("name", "what"), UNLIKE.items())
def test_a_network_of_another_kind_is_refused_by_name(name, what):
    with pytest.raises(InputError, match=rf"a network with {what}.*it has .*{name[-6:]}"):
        torch_in.translate(published.encoder() | {name: np.ones((1, 1, D), np.float32)})


def test_unknown_names():
    with pytest.raises(
        InputError,
        match=(
            r"layer1\.conv\.weight, fc\.bias, which no table knows; known are STELLAR, Hugging Face"
        ),
    ):
        torch_in.translate({"layer1.conv.weight": np.ones(3), "fc.bias": np.ones(3)})
    with pytest.raises(InputError, match="none at all"):
        torch_in.translate({})


def test_every_row_of_every_table_is_met():
    """A row that no published name meets is a slip."""
    names = {
        family: [torch_in._unwrap(name)[1] for name in tensors]
        for family, tensors in RECOGNISED.items()
    }
    names["dino"] += [
        "masked_embed",
        *published.dino_head(layers=("last_layer2",)),
        "head.mlp.weight",
        "head.mlp.bias",
    ]
    names["dino"] += ["head.last_layer.weight", "head.last_layer2.weight"]
    names["cribo"] += ["head.last_layer.weight", "head.last_layer_c.weight"]
    names["hf"] += ["embeddings.mask_token"]
    names["stellar"] += ["encoder.embeddings.mask_token"]
    numbers = Numbers(0)
    names["hf"] += [
        f"decoder.{name}" for name in mae_decoder(numbers) if not name.startswith("decoder_blocks")
    ]
    names["hf"] += list(published.hf_blocks(numbers, "decoder.decoder_layers", 1, D, D))
    names["dinov2"] += published.dinov2(block="blocks.0.{i}")
    for head in ("dino_head", "ibot_head"):
        for layer in (published.dino_head(), {"head.last_layer.weight": 0}):
            names["dinov2"] += [name.replace("head.", f"{head}.", 1) for name in layer]
    names["dinov2"] += ["register_tokens"]
    names["dinov2_registers"] += names["dinov2"]
    names["hf_dinov2"] += ["embeddings.register_tokens"]
    layer_scales = [f"blocks.0.{ls}.gamma" for ls in ("ls1", "ls2")]
    for family in ("dino", "cribo", "timm", "vit", "mae"):
        names[family] += ["reg_token", *layer_scales]
    names["mae"] += [f"decoder_{name}" for name in layer_scales]
    for family, table in tables.FAMILIES.items():
        for row in table.rows:
            assert any(rows.matches(row, name, table.prefixes) for name in names[family]), (
                family,
                row,
            )


# --- DINOv2


@pytest.mark.parametrize("registers", [0, 3])
@pytest.mark.parametrize("names", ["theirs", "chunked", "hf"])
def test_dinov2(saved, names, registers):
    theirs = published.dinov2(registers=registers)
    t = {
        "theirs": theirs,
        "chunked": prefixed(
            "teacher.backbone.", published.dinov2(registers=registers, block="blocks.0.{i}")
        ),
        "hf": published.hf_dinov2(registers=registers),
    }[names]
    config, params, report = convert.load_vit(saved(t), heads=HEADS)
    assert not report.left and not report.missing and not report.notes
    assert config.registers == registers and config.layer_scale > 0 and config.mask_token
    wanted = ("exact", "antialias-0.5") if registers else ("dino_offset", "keys-0.75")
    if names == "hf" and not registers:
        wanted = ("exact", "keys-0.75")
    assert (config.position_resize, config.resize_kernel) == wanted
    np.testing.assert_array_equal(params["mask_token"], theirs["mask_token"])
    np.testing.assert_array_equal(params["blocks"]["ls2"]["gamma"][1], theirs["blocks.1.ls2.gamma"])
    images = np.random.default_rng(0).random((2, 16, 16, 3))
    out = vit.vit(config).apply(params, jnp.asarray(images, jnp.float32))
    tokens = published.forward(theirs, images, offset=0.0, eps=1e-6)
    np.testing.assert_allclose(out.cls, tokens[:, 0], atol=1e-4)
    np.testing.assert_allclose(out.patches, tokens[:, 1 + registers :], atol=1e-4)


def test_dinov2_heads(saved):
    t = prefixed("teacher.backbone.", published.dinov2())
    for seed, head in enumerate(("dino_head", "ibot_head")):
        layers = published.dino_head(seed)
        t |= {name.replace("head.", f"teacher.{head}.", 1): x for name, x in layers.items()}
    arrays = torch_in.load(saved(t)).tree("teacher").arrays
    for seed, path in enumerate(("head", "patch_head")):
        layers = published.dino_head(seed)
        np.testing.assert_array_equal(arrays[f"{path}/mlp/2/kernel"], layers["head.mlp.4.weight"].T)
        wanted = layers["head.last_layer.weight_v"].T
        np.testing.assert_array_equal(arrays[f"{path}/last/direction"], wanted)


def test_layer_scale_and_registers_must_be_in_both(saved):
    path, tree = saved(published.dinov2(registers=3)), {"backbone": shapes("dino")["backbone"]}
    theirs = convert.load_vit(path, heads=HEADS)[0]
    with pytest.raises(InputError, match="has LayerScale .* add --config.model.layer_scale=1e-05"):
        convert.load_torch(path, tree)
    scaled = {name: x for name, x in published.dinov2(registers=3).items() if ".ls" not in name}
    with pytest.raises(InputError, match="3 registers, this model none.*model.registers=3"):
        convert.load_torch(saved(scaled), tree)
    rich = jax.eval_shape(vit.vit(theirs).init, jax.random.key(0))
    with pytest.raises(InputError, match="has not LayerScale .* add --config.model.layer_scale=0"):
        convert.load_torch(saved(published.encoder()), {"backbone": rich})


# --- FLSL's class token


def flsl_with_class_token() -> dict:
    """What FLSL's code saves: DINO's class token is among its parameters and is never used."""
    t = published.encoder() | published.dino_head()
    return t | {"pos_embed": position.sincos_2d(GRID, D)[None].astype(np.float32)}


def test_a_class_token_that_is_not_used_is_left(saved):
    t = flsl_with_class_token()
    config, params, report = convert.load_vit(saved(t), family="dino", heads=HEADS)
    assert not config.cls and "cls" not in params and "cls_token" in report.left
    assert "class token is no part of the network" in str(report)
    images = np.random.default_rng(0).random((2, 16, 16, 3))
    del t["cls_token"]
    wanted = published.forward(t, images, offset=0.1, eps=1e-6)
    out = vit.vit(config).apply(params, jnp.asarray(images, jnp.float32))
    np.testing.assert_allclose(out.patches, wanted, atol=1e-4)
    params, report = convert.load_torch(saved(flsl_with_class_token()), shapes("flsl"))
    assert not report.missing and "cls_token" in report.left


def test_a_class_token_with_a_code_or_learned_codes_stays(saved):
    with_code = published.encoder()
    with_code["pos_embed"][0] = np.pad(position.sincos_2d(GRID, D), ((1, 0), (0, 0)))
    learned = published.encoder()  # as timm has it with no_embed_class
    learned["pos_embed"] = learned["pos_embed"][:, 1:]
    for t in (with_code, learned):
        assert convert.load_vit(saved(t), family="timm", heads=HEADS)[0].cls


# --- the way back


@pytest.mark.parametrize("family", RECOGNISED)
def test_what_is_written_reads_back(family):
    table = tables.FAMILIES[family]
    arrays = torch_in.translate(RECOGNISED[family], family=family).tree("").arrays
    numbers = Numbers(7)
    ours = {path: numbers(*array.shape) for path, array in arrays.items()}
    tensors, left = rows.write(table.rows, ours)
    assert not left and torch_in.translate(tensors).family in (family, "vit")
    back, _, strange = rows.read(table.rows, tensors)
    assert not strange and back.keys() == ours.keys()
    for path, array in ours.items():
        np.testing.assert_array_equal(back[path], array, err_msg=path)


@pytest.mark.parametrize("family", RECOGNISED)
def test_what_was_published_is_written_as_it_was(family):
    table = tables.FAMILIES[family]
    short = {
        name.removeprefix("vit."): tensor
        for name, tensor in RECOGNISED[family].items()
        if "pooler" not in name and name != "head.weight"
    }
    tensors, _ = rows.write(table.rows, rows.read(table.rows, short)[0])
    assert tensors.keys() == short.keys()
    for name, tensor in short.items():
        np.testing.assert_array_equal(tensors[name], tensor, err_msg=name)


def test_a_bias_for_each_pixel_cannot_be_written_as_one_for_each_channel():
    table = tables.FAMILIES["stellar"].rows
    tiled = {"decoder/out/bias": np.tile([1.0, 2.0, 3.0], 16)}
    assert rows.write(table, tiled)[0]["reconstruction_head.bias"].tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="bias differs between the pixels of a patch"):
        rows.write(table, {"decoder/out/bias": np.arange(48.0)})
    assert rows.write(table, {"other/kernel": np.ones(3)}) == ({}, ["other/kernel"])
