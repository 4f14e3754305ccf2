"""Published PyTorch checkpoints as our parameters: names are recognised, translated by a table, and
put into a parameter tree.

    from ssl_jax import convert, models
    config, params, report = convert.load_vit("dino_deitsmall16_pretrain.pth", family="dino")
    tokens = models.vit.vit(config).apply(params, images)   # images [B, H, W, 3] in [0, 1]

    # Encoder, heads and decoder of a method:
    params, report = convert.load_torch("checkpoint.pth", params)
    print(report)
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from ssl_jax.config import InputError, unknown
from ssl_jax.convert import adapt, dinov3, hub, read, rows, tables
from ssl_jax.convert import fill as fill_lib
from ssl_jax.convert.described import FUNCTION
from ssl_jax.convert.weights import Report, Source, Weights, brief

# Dictionaries and modules that checkpoints are wrapped in, in any order, number and place.
_WRAPPERS = {"module", "model", "network", "net", "state_dict", "model_state_dict"}
_WRAPPERS |= {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}  # torch's own
_PARTS = {
    "student": "student",
    "student_backbone": "student",
    "teacher": "teacher",
    "teacher_backbone": "teacher",
    "ema": "teacher",
    "target_encoder": "teacher",  # of I-JEPA and MSN
    "model_ema": "teacher",
    "state_dict_ema": "teacher",
}
_DINO = re.compile(r"(^|\.)(student|teacher)(_backbone)?\.")
# Stored with the weights in a full checkpoint, and nothing to report.
_STATE = re.compile(
    r"(optimi[sz]ers?|optimizer_states|.*scaler|(lr_)?schedulers?|.*loss|callbacks|loops)(\..*)?"
    r"|(.*\.)?layers\.\d+\.blocks\.\d+\.(attn_mask|attn\.relative_position_index)"  # computed
)


def load_torch(
    path: str | Path,
    params: Mapping,
    *,
    family: str | None = None,
    part: str = "teacher",
    only: str = "",
    model: Mapping | None = None,
) -> tuple[dict, Report]:
    """Puts a published checkpoint into a parameter tree of one of our methods.

    Args:
      path: .safetensors, .npz, or (with torch installed) .pth, .pt, .bin, .ckpt; or a Hugging Face
        folder.
      params: nested dict of arrays or ShapeDtypeStructs, as method.init gives it ("backbone",
        "head", "decoder", ...); not changed.
      family: key of FAMILIES; None: recognised from the names.
      part: "teacher" (what authors evaluate) or "student", where the file has both.
      only, model: see `fill`.

    Returns:
      (params, report): a new tree, whose arrays from the file are NumPy float32; and a report of
        matched, unused and missing arrays.

    Raises:
      InputError: the file cannot be read; its names are of no known family, or nothing in it
        matches; a shape does not fit; the file's network has parts that this one lacks.
    """
    return fill_lib.fill(params, load(path, family=family).tree(part), only=only, model=model)


def load(path: str | Path, *, family: str | None = None) -> Source:
    """Reads and translates a checkpoint, with the description in a config.json next to it. Raises
    InputError as `load_torch` does."""
    file = read.weight_file(path)
    if file is None:
        raise InputError(f"the folder {path} holds no weight file")
    described = hub.describe(path)
    family = family or described.family or None
    translated = translate(read.tensors(file), family=family, source=str(path))
    stated = {key: value for key, value in described.model.items() if key in FUNCTION}

    def fitted(weights):
        with _complete(path):
            weights = adapt.to_model(weights, described.model)
        notes = (described.note, "" if "mean" in stated else weights.note)
        return weights._replace(
            model=weights.model | stated | _kinds(weights.arrays),
            note="; ".join(filter(None, notes)),
            norm_eps=described.model.get("norm_eps", weights.norm_eps),
        )

    return translated._replace(
        trees={part: fitted(tree) for part, tree in translated.trees.items()}
    )


def translate(
    tensors: Mapping[str, np.ndarray], *, family: str | None = None, source: str = "weights"
) -> Source:
    """Translates {PyTorch name: array}; see `load_torch`."""
    parts: dict[str, dict[str, str]] = {}  # part -> {name without wrappers: name}
    for name in tensors:
        part, short = _unwrap(name)
        if not _STATE.fullmatch(short):
            if other := parts.setdefault(part, {}).get(short):
                raise InputError(
                    f"{source} holds two tensors for {short}: {other} and {name}; save only one of"
                    " the two networks"
                )
            parts[part][short] = name
    if not any(parts.values()):
        raise InputError(f"{source} holds no tensors of a network")
    if family is not None and family not in tables.FAMILIES:
        raise InputError(unknown("family of checkpoints", family, tables.FAMILIES))
    _check_layers([short for shorts in parts.values() for short in shorts], source)
    family = family or _recognise(parts, source)
    table = tables.FAMILIES[family]
    for pattern, replacement in table.teacher:
        for short in [s for s in parts.get("", {}) if re.fullmatch(pattern, s)]:
            parts.setdefault("teacher", {})[re.sub(pattern, replacement, short)] = parts[""].pop(
                short
            )
    if table.teacher and {"", "teacher"} <= parts.keys():
        parts["student"] = parts.pop("")
    trees = {part: _translate(tensors, names, table, source) for part, names in parts.items()}
    return Source(
        family, table.method, {part: tree for part, tree in trees.items() if tree.arrays} or trees
    )


# Layers that ours has not, by names that only they have, in all libraries.
_UNLIKE = {
    r"(.*\.)?(rope|rope_embeddings)\..*": (
        "rotary position embeddings of another kind than DINOv3's, which follow from the grid"
    ),
    r".*\.(q_norm|k_norm)\..*": "norms of queries and keys, which this vision transformer lacks",
}


def _check_layers(names: list[str], source: str) -> None:
    """Refuses networks of another kind, naming what it is."""
    for pattern, what in _UNLIKE.items():
        matches = [name for name in names if re.fullmatch(pattern, name)]
        if matches:
            raise InputError(f"{source} holds a network with {what}: {brief(matches, 3)}")


def _unwrap(name: str) -> tuple[str, str]:
    """(part, name without what it is wrapped in): "state_dict.teacher.module.cls_token" ->
    ("teacher", "cls_token").
    """
    *words, last = name.split(".")
    part, words = "", [word for word in words if word not in _WRAPPERS]
    while words and words[0] in _PARTS:
        part = _PARTS[words.pop(0)]
    return part, ".".join([*words, last])


def _recognise(parts, source: str) -> str:
    """The first family one of whose marks is among the names."""
    names = [short for shorts in parts.values() for short in shorts]
    for key, table in tables.FAMILIES.items():
        mark = re.compile(f"{rows.front(table.prefixes)}(?:{table.mark})")
        if any(mark.fullmatch(name) for name in names):
            # Student and teacher are words of the DINO family, also where the heads were left out.
            full = [name for shorts in parts.values() for name in shorts.values()]
            if key == "vit" and any(_DINO.search(name) for name in full):
                return "dinov2" if any(name.endswith(".ls1.gamma") for name in names) else "dino"
            return key
    titles = ", ".join(table.title for table in tables.FAMILIES.values())
    such = brief(names, 3) or "(none)"
    raise InputError(f"{source} holds unknown names such as {such}; known are {titles}")


def _translate(tensors, names: Mapping[str, str], table: tables.Family, source: str) -> Weights:
    """One tree of {name without wrappers: name} under our paths."""
    floating = {s: tensors[name] for s, name in names.items() if _is_floating(tensors[name])}
    prepared = dinov3.Prepared(floating, {}, {})
    with _complete(source):
        if table.prepare:
            prepared = table.prepare({s: np.asarray(x, np.float32) for s, x in floating.items()})
        arrays, parts_of, left = rows.read(table.rows, prepared.tensors, table.prefixes)
    settled = floating.keys() - prepared.tensors.keys()
    names = {s: name for s, name in names.items() if s not in settled} | {
        s: names[origin] for s, origin in prepared.origins.items()
    }
    left = [s for s in names if s in set(left) or s not in prepared.tensors]
    _check_extra([name for name in left if name in floating], table, source)
    titles = {path: " + ".join(names[s] for s in parts) for path, parts in parts_of.items()}
    notes = [table.note] if table.note else []
    if _class_token_is_unused(arrays):
        left.append(*parts_of.pop("backbone/cls"))
        del arrays["backbone/cls"], titles["backbone/cls"]
        notes.append(
            "its class token is not used (FLSL): position embeddings are fixed, and the class token"
            " has none"
        )
    return Weights(
        source,
        table.title,
        arrays,
        titles,
        tuple(names[s] for s in left),
        table.model | prepared.model | _kinds(arrays),
        "; ".join(notes),
        table.norm_eps,
    )


@contextlib.contextmanager
def _complete(source: str | Path) -> Iterator[None]:
    """Turns the errors of tensors that are missing or have an unexpected shape into InputError."""
    try:
        yield
    except KeyError as error:
        raise InputError(f"{source} lacks {error.args[0]}") from error
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    except (ValueError, IndexError, ArithmeticError) as error:
        raise InputError(f"{source} has a tensor of an unexpected shape: {error}") from error


def _kinds(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """What kind of MLP and of biases an encoder's blocks have."""
    attention, mlp = "backbone/blocks/0/attn", "backbone/blocks/0/mlp"
    fc1, fc2 = (arrays.get(f"{mlp}/{name}/kernel") for name in ("fc1", "fc2"))
    if fc1 is None or fc2 is None:
        return {}
    bias = "all" if f"{attention}/qkv/bias" in arrays else "none"
    bias = "qv" if f"{attention}/q_bias" in arrays else bias
    return {"mlp": "swiglu" if fc1.shape[1] == 2 * fc2.shape[0] else "gelu", "qkv_bias": bias}


def _is_floating(tensor) -> bool:
    return jnp.issubdtype(tensor.dtype, jnp.floating)


def _class_token_is_unused(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether this is an encoder of FLSL: its code keeps DINO's class token among the parameters,
    but neither feeds it to the blocks nor has a position embedding for it.
    """
    codes = arrays.get("backbone/position")
    if codes is None or "backbone/cls" not in arrays:
        return False
    return fill_lib.grid_of(codes.shape[0])[0] == 0 and fill_lib.is_sincos(codes)


def _check_extra(left, table: tables.Family, source: str) -> None:
    """What a network has inside its blocks and its patch embedding beyond ours changes what it
    computes; so do tokens and embeddings that ours lacks.
    """
    extra = (
        r"(?:encoder\.)*(?:blocks|layers?)\.\d+\..*|norm_pre\..*|patch_embed\..*"
        r"|(?:embeddings\.)?(?:dist|distillation)_tokens?"
        r"|(?:embeddings\.)?(?:prompt|channel|type|time|scale)_(?:embed|token).*"
    )
    strange = [
        name for name in left if re.fullmatch(f"{rows.front(table.prefixes)}(?:{extra})", name)
    ]
    if strange:
        raise InputError(
            f"{source}: this vision transformer lacks {brief(strange, 3)}, so its"
            " features would differ"
        )
