"""Every family: each of our parameters gets exactly the tensor it should, the network computes what
theirs does, and what is written reads back.
"""

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from ssl_jax import convert, methods, settings, trees
from ssl_jax.config import InputError
from ssl_jax.convert import dinov3, rows, tables, torch_in
from ssl_jax.models import position, rope, vit
from tests.convert import published
from tests.convert.published import DEPTH, GRID, HEADS, HIDDEN, PATCH, D, Numbers, prefixed


@pytest.fixture
def saved(tmp_path):
    """Writes tensors to a file and returns its path."""

    def save(tensors):
        np.savez(tmp_path / "weights.npz", **tensors)
        return tmp_path / "weights.npz"

    return save


DECODER = {"decoder_width": 24, "decoder_depth": 2, "decoder_heads": 2}
HEAD = {"head_hidden": 32, "head_bottleneck": 16, "prototypes": 24}
CHANGES: dict[str, dict] = {
    "dino": HEAD,
    "flsl": HEAD,
    "cribo": HEAD | {"memory": 4},
    "ibot": {"head_hidden": 32, "head_bottleneck": 16, "cls.prototypes": 24},
    "sop": {"head_hidden": 32, "head_out": 16, "cls.memory": 64, "cls.anchors": 8},
    "mae": DECODER,
    "stellar": DECODER | {"prototypes": 6, "head_hidden": 32, "head_out": 16},
}
GENERAL = {
    "flsl": {"model.cls": False, "model.position": "sincos"},
    "ibot": {"views.mask": "block"},
    "sop": {"views.mask": "block"},
    "stellar": {"model.queries": 3},
}


@functools.cache
def shapes(name: str, **changes) -> dict:
    """The parameter tree of a method with the encoder of `published`, as shapes. changes: of its
    section.
    """
    c = settings.base_config(name)
    c.model.update(dict(size="custom", width=D, depth=DEPTH, heads=HEADS, patch=PATCH))
    c.model.update(dict(image_size=PATCH * GRID, mlp_ratio=HIDDEN / D))
    c.update_from_flattened_dict(GENERAL.get(name, {}))
    own = CHANGES[name] | changes
    c.update_from_flattened_dict({f"{name}.{key}": value for key, value in own.items()})
    method = methods.make(FrozenConfigDict(c))
    params = jax.eval_shape(lambda: method.init(jax.random.key(0))[0])
    constants = jax.eval_shape(method.constants)
    return params | ({"constants": constants} if constants else {})


# --- which tensor belongs where, written out

PLAIN = published.encoder()
FLSL = published.encoder(cls=False)
FLSL["pos_embed"] = position.sincos_2d(GRID, D)[None].astype(np.float32)


def linear(t: dict, **names: str) -> dict:
    """{path: array} of linear layers, path (with __ for /) = name."""
    names = {path.replace("__", "/"): name for path, name in names.items()}
    kernels = {f"{path}/kernel": t[f"{name}.weight"].T for path, name in names.items()}
    return kernels | {f"{path}/bias": t[f"{name}.bias"] for path, name in names.items()}


def norm(t: dict, path: str, name: str) -> dict:
    return {f"{path}/scale": t[f"{name}.weight"], f"{path}/bias": t[f"{name}.bias"]}


def blocks(t: dict, path: str, name: str = "blocks") -> dict:
    e = {}
    for i in range(DEPTH):
        for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
            e |= linear(t, **{f"{path}/{i}/{part.replace('.', '/')}": f"{name}.{i}.{part}"})
        for part in ("norm1", "norm2"):
            e |= norm(t, f"{path}/{i}/{part}", f"{name}.{i}.{part}")
    return e


# Row (y, x, channel) of a patch's kernel sees channel `channel` of pixel (y, x).
PIXELS = [(c, y, x) for y in range(PATCH) for x in range(PATCH) for c in range(3)]


def encoder(t: dict) -> dict:
    e = {
        "patch/kernel": np.stack([t["patch_embed.proj.weight"][:, c, y, x] for c, y, x in PIXELS]),
        "patch/bias": t["patch_embed.proj.bias"],
        "position": t["pos_embed"][0],
        **norm(t, "norm", "norm"),
    }
    if "cls_token" in t:
        e["cls"] = t["cls_token"][0]
    return prefixed("backbone/", e) | blocks(t, "backbone/blocks")


def mlp(t: dict, path: str = "head/mlp") -> dict:
    return linear(t, **{f"{path}/{i}": f"head.mlp.{2 * i}" for i in range(3)})


def last(t: dict, path: str = "head/last", name: str = "last_layer") -> dict:
    direction, gain = t[f"head.{name}.weight_v"], t[f"head.{name}.weight_g"]
    return {f"{path}/direction": direction.T, f"{path}/gain": gain.T}


def heads_of_stellar(t: dict, timm: dict) -> dict:
    """The encoder too: what the teacher has."""
    wanted = encoder(timm) | {"backbone/queries": t["sparse_tokens"]}
    for path, name in (("token_head", "clustering_head"), ("cls_head", "cls_cluster_head")):
        layers = {0: f"{name}.predictor.layers.0", 1: f"{name}.predictor.layers.2"}
        wanted |= linear(t, **{f"{path}/projection/mlp/{i}": layers[i] for i in layers})
        wanted[f"{path}/prototypes"] = t[f"{name}.layer.weight"]
    return wanted


def whole(t: dict) -> dict:
    """Of the DINO family."""
    return encoder(t) | mlp(t) | last(t)


class Case(NamedTuple):
    """A checkpoint, what the parameters must be, and whose: of a method, or some parts of them."""

    tensors: dict
    wanted: dict
    method: str
    left: tuple[str, ...] = ()
    changes: Mapping = MappingProxyType({})
    only: tuple[str, ...] = ()
    part: str = "teacher"


def cases_of_dino() -> dict[str, Case]:
    t, other = (published.encoder(seed) | published.dino_head(seed + 10) for seed in (0, 1))

    def module(t):  # "head.head." and "backbone."
        return {("" if n.startswith("head") else "backbone.") + n: x for n, x in t.items()}

    both = prefixed("student.module.", module(t)) | prefixed("teacher.", module(other))
    new = {"weight_g": "weight.original0", "weight_v": "weight.original1"}
    today = {re.sub("weight_[gv]$", lambda m: f"parametrizations.{new[m[0]]}", n): t[n] for n in t}
    masked = published.encoder() | {"masked_embed": Numbers(5)(1, D)}
    sop = masked | published.dino_head(layers=())
    mask = {"backbone/mask_token": masked["masked_embed"]}
    ibot = masked | published.dino_head(layers=("last_layer", "last_layer2"))
    second = last(ibot, "patch_head/last", "last_layer2")
    # The code stores one layer under both names.
    unused = ("head.last_layer2.weight_g", "head.last_layer2.weight_v")
    cribo = published.encoder() | published.dino_head(layers=("last_layer", "last_layer_c"))
    images, objects = last(cribo, "head/images"), last(cribo, "head/objects", "last_layer_c")
    flsl = FLSL | published.dino_head()
    computed = {path: x for path, x in whole(flsl).items() if path != "backbone/position"}
    # What FLSL's code saves: DINO's class token, which is never used.
    more = flsl | {"cls_token": Numbers(6)(1, 1, D)}
    return {
        "dino student": Case(both, whole(t), "dino", part="student"),
        "dino teacher": Case(both, whole(other), "dino"),
        "weight norm of today": Case(today, whole(t), "dino"),
        "sop": Case(prefixed("backbone.", sop), encoder(sop) | mlp(sop) | mask, "sop"),
        "ibot": Case(ibot, whole(ibot) | mask, "ibot", unused, {"shared_head": "all"}),
        "ibot, two last layers": Case(
            ibot, whole(ibot) | mask | second, "ibot", changes={"shared_head": "mlp"}
        ),
        "cribo": Case(
            prefixed("teacher.", cribo),
            encoder(cribo) | mlp(cribo, "head/trunk/mlp") | images | objects,
            "cribo",
        ),
        "flsl": Case(flsl, computed, "flsl"),
        "flsl with a class token": Case(more, computed, "flsl", ("cls_token",)),
    }


def cases_of_others() -> dict[str, Case]:
    t = published.mae()
    wanted = encoder(t) | blocks(t, "decoder/blocks", "decoder_blocks")
    wanted |= linear(t, decoder__embed="decoder_embed", decoder__out="decoder_pred")
    wanted |= norm(t, "decoder/norm", "decoder_norm") | {"decoder/mask_token": t["mask_token"][0]}
    hf = dict(reversed(published.as_hf(PLAIN).items()))  # the order does not matter
    return {
        "mae": Case(prefixed("model.", t), wanted, "mae"),
        "hf": Case(hf, encoder(PLAIN), "dino", only=("backbone",)),
    }


def cases_of_stellar() -> dict[str, Case]:
    timm, t = published.stellar_decoder()
    names = {"factorise__dense": "dense_proj", "factorise__sparse": "sparse_proj"}
    wanted = linear(t, **names, decoder__embed="decoder_proj")
    wanted |= blocks(timm, "decoder/blocks") | norm(timm, "decoder/norm", "norm")
    out, bias = t["reconstruction_head.weight"], t["reconstruction_head.bias"]
    wanted["decoder/out/kernel"] = np.stack([out[:, c, y, x] for c, y, x in PIXELS], axis=1)
    wanted["decoder/out/bias"] = np.array([bias[c] for c, _, _ in PIXELS])
    wanted["constants/fourier"] = t["position_embedding.positional_encoding_gaussian_matrix"]
    student, other = (published.stellar_encoder(seed) for seed in (0, 1))
    wanted |= heads_of_stellar(student, published.encoder(0))
    pooler = tuple(f"encoder.pooler.dense.{kind}" for kind in ("weight", "bias"))
    renamed = {
        re.sub("^clustering_head", "head", re.sub("^cls_cluster_head", "cls_head", name)): x
        for name, x in other.items()
    }
    both = student | t | prefixed("teacher_", renamed)
    taught = heads_of_stellar(other, published.encoder(1))
    parts = ("backbone", "token_head", "cls_head")
    return {
        "stellar student": Case(both, wanted, "stellar", pooler, part="student"),
        "stellar teacher": Case(
            both, taught, "stellar", tuple(f"teacher_{name}" for name in pooler), only=parts
        ),
    }


CASES = cases_of_dino() | cases_of_others() | cases_of_stellar()


@pytest.mark.parametrize("name", CASES)
def test_each_parameter_gets_its_tensor(saved, name):
    case = CASES[name]
    params = shapes(case.method, **case.changes)
    params = {name: params[name] for name in case.only or params}
    params, report = convert.load_torch(saved(case.tensors), params, part=case.part)
    found = trees.per_block(params)
    chex.assert_trees_all_equal(dict(found), case.wanted)
    assert set(report.left) == set(case.left) and not report.missing
    for origin in report.matched.values():
        assert set(origin.split(" + ")) <= set(case.tensors)


def test_weight_norm_multiplied_in(saved):
    t = published.encoder() | published.dino_head()
    g, v = t.pop("head.last_layer.weight_g"), t.pop("head.last_layer.weight_v")
    t["head.last_layer.weight"] = np.abs(g) * v / np.linalg.norm(v, axis=1, keepdims=True)
    head = convert.load_torch(saved(t), shapes("dino"))[0]["head"]["last"]
    np.testing.assert_allclose(head["gain"], np.abs(g).T, rtol=1e-6)
    np.testing.assert_allclose(head["direction"], t["head.last_layer.weight"].T)


def test_a_decoder_without_positions_is_left(saved):
    """ViTMAE of transformers, trained from scratch: its decoder never had position embeddings."""
    t = published.mae()
    t["decoder_pos_embed"] *= 0
    params, report = convert.load_torch(saved(t), shapes("mae"))
    assert report.notes
    assert set(report.missing) == {p for p in trees.shapes(shapes("mae")) if "decoder/" in p}
    assert params["decoder"] == shapes("mae")["decoder"]


CODED = published.stellar_encoder() | published.stellar_decoder()[1]
CODED |= published.linear(Numbers(8), "reconstruction_head", 24, 1024)


def test_stellar_with_codes_as_target():
    arrays = torch_in.translate(CODED).tree("student").arrays
    kernel = CODED["reconstruction_head.weight"].T
    np.testing.assert_array_equal(arrays["decoder/out/kernel"], kernel)
    assert arrays["decoder/out/bias"].shape == (1024,)


def test_heads_of_dinov2():
    t, wanted = prefixed("teacher.backbone.", published.dinov2()), {}
    for seed, head, path in ((0, "dino_head", "head"), (1, "ibot_head", "patch_head")):
        layers = published.dino_head(seed)
        t |= {name.replace("head.", f"teacher.{head}.", 1): x for name, x in layers.items()}
        wanted |= mlp(layers, f"{path}/mlp") | last(layers, f"{path}/last")
    arrays = torch_in.translate(t).tree("teacher").arrays
    chex.assert_trees_all_equal({path: arrays[path] for path in wanted}, wanted)


# --- shapes


def test_the_shape_of_an_encoder_is_read_off_its_weights(saved):
    path = saved(published.encoder(depth=3, d=128, patch=2, grid=5))
    c = convert.load_vit(path, family="dino", heads=2)[0]
    assert (c.width, c.depth, c.heads, c.patch, c.image_size) == (128, 3, 2, 2, 10)
    assert c.hidden == 256 and c.cls and not c.queries and not c.mask_token
    path = saved(published.encoder(cls=False))
    config, params, _ = convert.load_vit(path, family="mae", heads=HEADS)
    assert not config.cls and "cls" not in params


@pytest.mark.parametrize(
    "width, heads",
    [(192, 3), (1152, 16), (1280, 16), (1664, 16), *((width, 0) for width in (64, 96, 432, 1728))],
)
def test_heads_of_published_widths(saved, width, heads):
    """ViT-H has 16 heads of 80; of a width that nobody has published, a file says nothing."""
    path = saved(published.encoder(depth=1, d=width))
    stated, _, report = convert.load_vit(path, family="timm", heads=2)
    assert stated.heads == 2
    if heads:
        usual, _, guessed = convert.load_vit(path, family="timm")
        assert usual.heads == heads and guessed.notes != report.notes  # it says so
        return
    with pytest.raises(InputError, match="heads=N"):
        convert.load_vit(path, family="timm")


def test_a_class_token_with_a_code_or_learned_codes_stays(saved):
    with_code, learned = published.encoder(), published.encoder()
    with_code["pos_embed"][0] = np.pad(position.sincos_2d(GRID, D), ((1, 0), (0, 0)))
    learned["pos_embed"] = learned["pos_embed"][:, 1:]  # as timm has it with no_embed_class
    for t in (with_code, learned):
        config = convert.load_vit(saved(t), family="timm", heads=HEADS)[0]
        assert config.cls
        assert (config.position_resize, config.resize_kernel) == ("exact", "antialias-0.5")


# --- names

RECOGNISED = published.families()
DINOV2 = published.dinov2(registers=3)
WRAPPINGS = ("", "module.", "state_dict.", "model.", "state_dict.module.", "_orig_mod.")
FAMILY = pytest.mark.parametrize("family", tables.FAMILIES)


@FAMILY
def test_recognised_however_wrapped(family):
    plain = torch_in.translate(RECOGNISED[family], family=family).tree("")
    held = ("backbone.", "image_encoder.", "backbone._orig_mod.", "model.visual.trunk.")
    for wrapping in (*WRAPPINGS, *(() if family == "stellar" else held)):
        found = torch_in.translate(prefixed(wrapping, RECOGNISED[family]))
        assert found.family == family and set(found.trees) == {""}, wrapping
        assert set(found.tree("").arrays) == set(plain.arrays)
    inside = {
        re.sub(r"\.(?=\d\.)", "._fsdp_wrapped_module.", name): tensor
        for name, tensor in RECOGNISED[family].items()
    }
    arrays = torch_in.translate(inside, family=family).tree("").arrays
    chex.assert_trees_all_equal(dict(arrays), dict(plain.arrays))


def to_authors(arrays, shape: vit.ViTConfig) -> dict[str, np.ndarray]:
    """The authors' tensors of an encoder, with masks of biases and periods."""
    tensors, _ = rows.write(dinov3.authors_rows(shape.mlp == "swiglu"), arrays)
    for name in [name for name in tensors if name.endswith(".q_bias")]:
        attention = name.removesuffix("q_bias")
        query, value = tensors.pop(name), tensors.pop(f"{attention}v_bias")
        tensors[f"{attention}qkv.bias"] = np.concatenate([query, np.zeros_like(query), value])
        mask = np.repeat(np.array([1, 0, 1], np.float32), query.size)
        tensors[f"{attention}qkv.bias_mask"] = mask
    periods = rope.periods(shape.width // shape.heads, shape.rope_base, shape.rope_rounded)
    return tensors | {"rope_embed.periods": periods.astype(np.float32)}


WRITERS = {
    "dinov3": to_authors,
    "hf_dinov3": dinov3.to_hugging_face,
    "timm_dinov3": lambda arrays, shape: rows.write(dinov3.timm_rows(False), arrays)[0],
}


def rotating(**changes) -> vit.ViTConfig:
    """Of a network in `RECOGNISED` with rotary position embeddings."""
    fields = dict(width=D, depth=DEPTH, heads=HEADS, patch=PATCH, image_size=PATCH * GRID)
    return vit.ViTConfig(**fields, position="rope", **changes)


def test_a_satellite_network_is_known_by_its_files_name(tmp_path):
    web, satellite = (tmp_path / f"dinov3_vits16_pretrain_{x}.npz" for x in ("lvd1689m", "sat493m"))
    for path in (web, satellite):
        np.savez(path, **RECOGNISED["dinov3"])
    assert convert.load_vit(web)[0].mean == vit.ViTConfig.mean
    shape = convert.load_vit(satellite)[0]
    assert (shape.mean, shape.std) == ((0.43, 0.411, 0.296), (0.213, 0.156, 0.143))


@FAMILY
def test_what_is_read_is_written_as_it_was(family):
    table = tables.FAMILIES[family].rows
    published = {
        name.removeprefix("vit."): tensor
        for name, tensor in RECOGNISED[family].items()
        if "pooler" not in name and name != "head.weight"
    }
    if not tables.FAMILIES[family].prepare:
        tensors, left = rows.write(table, rows.read(table, published)[0])
        assert not left
    else:
        arrays, shape = torch_in.translate(published).tree("").arrays, rotating()
        tensors = WRITERS[family](arrays, shape)
    assert torch_in.translate(tensors).family in (family, "vit")
    chex.assert_trees_all_equal(dict(tensors), published)


def test_a_bias_for_each_pixel_cannot_be_written_as_one_for_each_channel():
    table = tables.FAMILIES["stellar"].rows
    tiled = {"decoder/out/bias": np.tile([1.0, 2.0, 3.0], 16)}
    assert rows.write(table, tiled)[0]["reconstruction_head.bias"].tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="bias"):
        rows.write(table, {"decoder/out/bias": np.arange(48.0)})
    assert rows.write(table, {"other/kernel": np.ones(3)}) == ({}, ["other/kernel"])


def test_student_and_teacher_are_told_by_their_names():
    found = torch_in.translate(prefixed("teacher.backbone.", published.encoder()))
    assert found.family == "dino" and set(found.trees) == {"teacher"}
    assert found.tree("student") is found.tree("teacher")  # the one there is
    found = torch_in.translate(
        prefixed("student_backbone.", PLAIN) | prefixed("teacher_backbone.", published.encoder(1))
    )
    assert found.family == "dino" and set(found.trees) == {"student", "teacher"}
    for words in ("target_encoder.module.", "model_ema.", "state_dict_ema."):  # not DINO's alone
        averaged = prefixed("encoder.module.", PLAIN) | prefixed(words, published.encoder(1))
        found = torch_in.translate(averaged)
        assert found.family == "vit" and set(found.trees) == {"", "teacher"}
    bias = published.encoder(1)["norm.bias"]
    np.testing.assert_array_equal(found.tree("teacher").arrays["backbone/norm/bias"], bias)
    t = RECOGNISED["timm"]
    averaged = {name: x + 1 for name, x in t.items()}
    found = torch_in.translate(prefixed("state_dict.", t) | prefixed("state_dict_ema.", averaged))
    assert set(found.trees) == {"", "teacher"}
    for part, tensors in (("student", t), ("teacher", averaged)):
        bias = found.tree(part).arrays["backbone/norm/bias"]
        np.testing.assert_array_equal(bias, tensors["norm.bias"])


def test_what_is_no_weight_is_not_reported_and_buffers_are_left():
    one = np.ones(1, np.float32)
    state = {"optimizer.state.0.exp_avg": one, "dino_loss.center": one, "fp16_scaler.x": one}
    found = torch_in.translate(prefixed("teacher.", published.encoder()) | state)
    assert set(found.trees) == {"teacher"} and not found.tree("teacher").left
    for front in ("", "model.", "teacher.backbone."):  # timm's buffers of Swin
        names = ("attn_mask", "attn.relative_position_index")
        masks = prefixed(f"{front}layers.1.blocks.1.", dict.fromkeys(names, np.ones((2, 9, 9))))
        found = torch_in.translate(prefixed(front, published.swin(1)) | masks)
        assert all(not tree.left for tree in found.trees.values())
    buffers = {"head.mlp.num_batches_tracked": np.array(3), "queue": np.ones((2, 2), np.float32)}
    found = torch_in.translate(published.encoder() | buffers)
    assert set(found.tree("").left) == set(buffers)


def test_other_precisions_become_float32():
    for dtype in ("float16", "float64", "bfloat16"):
        t = {name: tensor.astype(jnp.dtype(dtype)) for name, tensor in PLAIN.items()}
        arrays = torch_in.translate(t).tree("").arrays
        assert {array.dtype for array in arrays.values()} == {np.dtype("float32")}


@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize("gated", [False, True])
def test_dinov3_under_all_names_is_one_network(saved, family, gated):
    """Features of the authors' network in float64, of each library's names."""
    t = published.dinov3(gated=gated)
    config, params, report = convert.load_vit(saved(published.dinov3_as(family, t)), heads=HEADS)
    kinds = config.position, config.norm_eps, config.registers, config.mlp, config.qkv_bias
    assert kinds == ("rope", 1e-5, 3, "swiglu" if gated else "gelu", "qv")
    assert not report.left and config.hidden == HIDDEN
    if family == "dinov3":  # periods tell the width of a head
        assert convert.load_vit(saved(t))[0].heads == HEADS
    images = np.random.default_rng(0).uniform(size=(2, 12, 20, 3))
    ours = vit.vit(config).apply(params, jnp.asarray(images, jnp.float32))
    wanted = published.forward_dinov3(t, images)
    np.testing.assert_allclose(ours.cls, wanted[:, 0], atol=2e-5)
    np.testing.assert_allclose(ours.patches, wanted[:, 4:], atol=2e-5)


@pytest.mark.parametrize("parts", [("student", "teacher"), ("teacher",)])
def test_stellar_saved_by_parts(parts):
    """As the message on files with Python objects recommends."""
    t = {part: published.stellar_encoder(seed) for seed, part in enumerate(parts)}
    found = torch_in.translate({f"{part}.{name}": x for part in t for name, x in t[part].items()})
    assert found.family == "stellar" and set(found.trees) == set(parts)
    for part in parts:
        queries = found.tree(part).arrays["backbone/queries"]
        np.testing.assert_array_equal(queries, t[part]["sparse_tokens"])


@pytest.mark.parametrize(
    "family, gone, named",
    [
        ("hf_dinov3", "layer.0.mlp.up_proj.weight", "up_proj"),
        ("hf_dinov3", "layer.0.attention.v_proj.bias", "v_proj"),
        ("dinov3", "blocks.0.attn.qkv.bias", "qkv.bias"),
    ],
)
def test_dinov3_without_a_tensor_is_refused(family, gone, named):
    t = published.dinov3_as(family, published.dinov3(gated=True))
    t = {name: tensor for name, tensor in t.items() if name != gone}
    with pytest.raises(InputError, match=named):
        torch_in.translate(t, family=family)


@pytest.mark.parametrize(
    "named, changes",
    [
        (
            "shape",
            {"blocks.0.attn.qkv.bias": np.ones(7), "blocks.0.attn.qkv.bias_mask": np.ones(7)},
        ),
        ("key", {f"blocks.0.attn.qkv.{name}": np.ones(3 * D) for name in ("bias", "bias_mask")}),
        ("periods", {"rope_embed.periods": np.array([1.0, 7.0])}),
        ("cls_norm", {"cls_norm.weight": np.ones(D)}),
        ("pos_embed", {"pos_embed": np.ones((1, 17, D))}),
    ],
)
def test_dinov3_that_computes_something_else_is_refused(named, changes):
    with pytest.raises(InputError, match=named):
        torch_in.translate(published.dinov3() | changes)


# --- refused

# A name that a network of another kind has beside ours -> what the message must name.
UNLIKE = {
    "blocks.0.attn.relative_position": "attn.relative_position",
    "norm_pre.weight": "norm_pre.weight",
    "dist_token": "dist_token",
    "blocks.1.gamma_1": "gamma_1",
    "blocks.0.mlp.w12.weight": "w12",
    "encoder.layer.0.mlp.weights_in.weight": "weights_in",
    "layer.0.mlp.gate_proj.weight": "gate_proj",
    "rope.freqs": "rope",
    "rope_embed.periods": "pos_embed",
    "storage_tokens": "pos_embed",
    "embeddings.patch_embeddings.weight": "pos_embed",
    "blocks.1.attn.q_norm.weight": "norms of queries and keys",
    "patch_embed.norm.weight": "patch_embed.norm",
    "channel_embed": "channel_embed",
    "prompt_embeddings": "prompt_embeddings",
}


def test_a_network_of_another_kind_is_refused():
    for name, named in UNLIKE.items():
        with pytest.raises(InputError, match=named):
            torch_in.translate(PLAIN | {name: np.ones((1, 1, D), np.float32)})
    for shape in ((D, 12, PATCH, PATCH), (D, 3, PATCH, 2 * PATCH)):
        with pytest.raises(InputError, match="square and have 3 channels"):
            torch_in.translate(PLAIN | {"patch_embed.proj.weight": np.ones(shape, np.float32)})


def test_names_that_no_table_knows_or_that_come_twice_or_may_be_anybodys(saved):
    for tensors, named in (
        ({"layer1.conv.weight": np.ones(3), "fc.bias": np.ones(3)}, "layer1.conv.weight"),
        ({}, "no tensors"),
        ({"optimizer.a": np.ones(2)}, "no tensors"),
        (prefixed("model.", PLAIN) | prefixed("state_dict.", PLAIN), r"state_dict\.cls_token"),
        (prefixed("backbone.", PLAIN) | prefixed("visual.", PLAIN), r"visual\.cls_token"),
        (PLAIN | {"cls_token": np.ones(())}, "cls_token"),
        (PLAIN | {"cls_token": np.ones(0)}, "cls_token"),
    ):
        with pytest.raises(InputError, match=named):
            torch_in.translate(tensors)
    t = published.as_hf(PLAIN)
    del t["encoder.layer.1.attention.attention.key.weight"]
    with pytest.raises(InputError, match="backbone/blocks/1/attn/qkv/kernel"):
        torch_in.translate(t)
    bare = {name: tensor for name, tensor in published.dinov2().items() if name != "mask_token"}
    for tensors, family, named in ((PLAIN, None, "dino"), (PLAIN, "dinno", "dino")):
        with pytest.raises(InputError, match=f'"{named}"'):  # several have these names
            convert.load_vit(saved(tensors), family=family)
    with pytest.raises(InputError, match='"dinov2" or "timm"'):
        convert.load_vit(saved(bare))


REVERSED = published.encoder(cls=False) | published.dino_head()
REVERSED |= {"pos_embed": FLSL["pos_embed"][:, ::-1]}
MOVED = published.mae() | {"decoder_pos_embed": published.mae()["decoder_pos_embed"] + 0.1}
UNSCALED = {name: x for name, x in DINOV2.items() if ".ls" not in name}
REFUSED = [  # tensors, parameters, what the message must name
    (REVERSED, lambda: shapes("flsl"), "pos_embed"),
    (MOVED, lambda: shapes("mae"), "decoder_pos_embed"),
    (CODED, lambda: shapes("stellar"), "reconstruction_head"),
    (DINOV2, lambda: backbone(0.0), "model.layer_scale=1 .*model.registers=3"),
    (UNSCALED, lambda: backbone(0.0), "model.registers=3"),
    (PLAIN, lambda: backbone(0.1), "model.layer_scale=0"),
]


def backbone(layer_scale: float) -> dict:
    shape = dict(width=D, depth=DEPTH, heads=HEADS, patch=PATCH, image_size=16, mlp_ratio=2.0)
    network = vit.vit(vit.ViTConfig(**shape, layer_scale=layer_scale))
    return {"backbone": jax.eval_shape(network.init, jax.random.key(0))}


@pytest.mark.parametrize(("tensors", "params", "named"), REFUSED)
def test_weights_of_another_network_are_refused(saved, tensors, params, named):
    with pytest.raises(InputError, match=named):
        convert.load_torch(saved(tensors), params())
