"""launch/detection on a made-up COCO folder: networks, changes of images, resume, refusals.

Skipped without torch, torchvision, timm and faster-coco-eval, the extra `detection`.
"""

import json
import shutil
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import ssl_jax
from ssl_jax.config import InputError
from tests.convert import networks
from tests.docs.scripts import page

for library in ("torch", "torchvision", "timm", "faster_coco_eval"):
    pytest.importorskip(library, reason="the extra `detection`", exc_type=ImportError)
import timm  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from launch.detection import __main__ as script  # noqa: E402
from launch.detection import images, network  # noqa: E402

# A detector as small as can be: its images have 64 pixels.
TINY = """
    channels=8 rois=8 short=[64] long=64 test_short=64 batch=2 epochs=3 warmup=2 crop=false
    anchors=[8,16,32,48,64] layer_decay=0.5
""".split()
SQUARES = [(0, 8, 24, 16), (32, 32, 24, 32)]  # left, top, width, height


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "plain"
    ssl_jax.export(networks.network("plain"), folder, to="timm")  # patches of 8, two blocks
    return folder


@pytest.fixture
def coco(tmp_path):
    """Four dark images with two bright objects each, and one with none."""
    annotations = []
    for i in range(5):
        image = np.zeros((64, 64, 3), np.uint8)
        for category, (x, y, w, h) in enumerate(SQUARES if i < 4 else (), 1):
            image[y : y + h, x : x + w] = 100 * category + i
            corners = [x, y, x + w, y, x + w, y + h, x, y + h]
            entry = dict(id=len(annotations) + 1, image_id=i + 1, category_id=7 * category)
            entry |= dict(bbox=[x, y, w, h], area=w * h, iscrowd=0, segmentation=[corners])
            annotations.append(entry)
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    listed = [dict(id=i + 1, file_name=f"{i}.png", height=64, width=64) for i in range(5)]
    categories = [dict(id=7, name="low"), dict(id=14, name="high")]
    content = dict(images=listed, annotations=annotations, categories=categories)
    (tmp_path / "all.json").write_text(json.dumps(content))
    return tmp_path


def settings(name="small", *changes):
    return script.protocol(name, [*TINY, *changes])


def command(coco, exported, workdir, *changes, protocol="small", more=()):
    place = [str(coco / "all.json"), str(coco)]
    sets = [word for change in (*TINY, *changes) for word in ("--set", change)]
    folders = ["--workdir", str(workdir), "--train", *place, "--val", *place]
    return [str(exported), "--protocol", protocol, *folders, "--device", "cpu", *sets, *more]


@pytest.mark.parametrize("name", ["flsl_table1", "flsl_table2", "flsl_table3"])
def test_maps_have_the_strides_of_the_pyramid(exported, name):
    p = settings(name, "blocks=[1,1,2,2]" if name != "flsl_table2" else "blocks=[]")
    model = network.detector(exported, p, 2)
    maps = model.backbone(torch.zeros(1, 3, 64, 96))
    sizes = [(64 // stride, 96 // stride) for stride in (4, 8, 16, 32)] + [(1, 2)]
    assert [tuple(x.shape) for x in maps.values()] == [(1, 8, *size) for size in sizes]
    assert ("masks" in model.eval()(torch.zeros(1, 3, 64, 64))[0]) == (p.detector == "mask")


@pytest.mark.parametrize("pyramid", ["fpn", "simple"])
def test_a_swin_transformer_gives_its_stages(pyramid):
    shape = dict(depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1), embed_dim=8, window_size=2)
    name = "swin_tiny_patch4_window7_224"
    net = timm.create_model(name, img_size=64, strict_img_size=False, **shape)
    net.norm = torch.nn.Identity()
    backbone = network.Backbone(net, settings("flsl_table1", f"pyramid={pyramid}"))
    maps = backbone(torch.zeros(1, 3, 64, 96))
    assert [x.shape[2:] for x in maps.values()] == [(16, 24), (8, 12), (4, 6), (2, 3), (1, 2)]
    sum(x.sum() for x in maps.values()).backward()
    missing = [name for name, value in backbone.named_parameters() if value.grad is None]
    assert [name for name in missing if "norm" not in name and "head" not in name] == []


def test_weights_are_those_of_the_export_unless_random(exported):
    encoder, p = networks.network("plain"), settings()
    pictures = networks.pictures((32, 32))
    mean, std = (np.array(getattr(encoder.shape, name)) for name in ("mean", "std"))
    values = torch.from_numpy(((pictures - mean) / std).astype(np.float32)).permute(0, 3, 1, 2)
    for random in (False, True):
        model = network.detector(exported, p, 2, random).eval()
        with torch.no_grad():
            maps = model.backbone.net.forward_features(values).numpy()
        norm = encoder.backbone["norm"]
        centred = maps - maps.mean(-1, keepdims=True)
        ours = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + encoder.shape.norm_eps)
        ours = ours * norm["scale"] + norm["bias"]
        near = np.allclose(ours, networks.tokens(encoder, pictures), atol=1e-3)
        assert near == (not random)


def test_the_rate_falls_from_the_heads_to_the_patches(exported):
    p = settings()
    model = network.detector(exported, p, 2)
    optimizer = network.optimizer(model, p)
    scale = {id(v): g for g in optimizer.param_groups for v in g["params"]}
    names = dict(model.named_parameters())
    expected = {
        "backbone.net.patch_embed.proj.weight": (0.125, 0.05),
        "backbone.net.pos_embed": (0.125, 0.0),
        "backbone.net.blocks.0.attn.qkv.weight": (0.25, 0.05),
        "backbone.net.blocks.1.attn.qkv.bias": (0.5, 0.0),
        "backbone.scales.0.0.weight": (1.0, 0.05),
        "roi_heads.box_head.fc6.weight": (1.0, 0.05),
    }
    found = {name: scale[id(names[name])] for name in expected}
    assert {n: (g["scale"], g["weight_decay"]) for n, g in found.items()} == expected
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(names)


@pytest.mark.parametrize(
    "changes", [("crop=true", "short=[48,80]"), ("jitter=[0.5,2.0]",)], ids=["crop", "jitter"]
)
def test_boxes_and_masks_move_with_the_image(coco, changes):
    p = settings("flsl_table1", "flip=1.0", "blocks=[1,1,2,2]", *changes)
    data = script.Images(coco / "all.json", coco, p, seed=0)
    assert len(data.ids) == 4
    shapes = set()
    for position in range(6):
        image, target = data[position, 1]
        shapes.add(tuple(image.shape))
        for box, label, mask in zip(target["boxes"], target["labels"], target["masks"]):
            x, y, right, below = box.round().int().tolist()
            level = (100 * int(label) + 1) / 255
            inside = image[0, y + 2 : below - 2, x + 2 : right - 2]
            for pixels in (inside, image[0][mask.bool()]):
                assert pixels.numel() < 20 or abs(float(pixels.median()) - level) < 0.02
            assert abs(int(mask.sum()) - (right - x) * (below - y)) <= 2 * (right - x + below - y)
    assert len(shapes) > 1
    again = data[5, 1]
    assert torch.equal(again[0], image) and torch.equal(again[1]["boxes"], target["boxes"])


def test_a_crop_takes_a_part_and_its_boxes():
    place = torch.arange(64, dtype=torch.uint8)
    image = images.tv_tensors.Image(
        torch.stack([place[:, None].expand(64, 64)] + [place.expand(64, 64)] * 2)
    )
    boxes = images.tv_tensors.BoundingBoxes([[10, 12, 50, 60]], format="XYXY", canvas_size=(64, 64))
    for seed in range(5):
        torch.manual_seed(seed)
        part, moved = images.Crop(20, 40)(image, boxes)
        (height, width), (top, left) = part.shape[1:], part[:2, 0, 0].tolist()
        assert 20 <= min(height, width) <= max(height, width) <= 40
        assert part[:2, -1, -1].tolist() == [top + height - 1, left + width - 1]
        corners = np.array([10 - left, 12 - top, 50 - left, 60 - top])
        assert moved[0].tolist() == np.clip(corners, 0, [width, height] * 2).tolist()


def test_a_step_draws_from_its_number_alone(coco, exported):
    p = settings("small", "drop_path=0.5")
    data, losses = script.Images(coco / "all.json", coco, p, seed=0), []
    for noise in (1, 2):
        torch.manual_seed(0)
        model = network.detector(exported, p, 2).train()
        batch = [data[place] for place in next(data.batches(2, 0, 1))]
        torch.manual_seed(noise)
        args = SimpleNamespace(seed=0, device="cpu", pieces=1)
        losses.append(script._step(model, network.optimizer(model, p), batch, 3, 4, p, args))
    assert losses[0] == losses[1]


def test_every_epoch_has_every_image_once_and_goes_on_from_any_step(coco):
    data = script.Images(coco / "all.json", coco, settings(), seed=3)
    batches = list(data.batches(3, 0, 8))
    places = [place for batch in batches for place in batch]
    assert [position for position, _ in places] == list(range(24))
    records = [record for _, record in places]
    assert all(sorted(records[i : i + 4]) == [0, 1, 2, 3] for i in range(0, 24, 4))
    assert len({tuple(records[i : i + 4]) for i in range(0, 24, 4)}) > 1
    assert list(data.batches(3, 5, 8)) == batches[5:]


@pytest.mark.parametrize("protocol", ["small", "flsl_table1"])
def test_a_stopped_run_goes_on_to_the_same_weights(coco, exported, tmp_path, monkeypatch, protocol):
    changes = ["rate=0.001"] + ["blocks=[1,1,2,2]"] * (protocol != "small")
    document = page(tmp_path / "docs" / "detection.md", "detectors")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "RECORDS", tmp_path / "records.jsonl")
    one, two = tmp_path / "one", tmp_path / "two"
    drawn = ["--draw", str(tmp_path / "found.png"), "--record", "mine"]
    words = command(coco, exported, one, *changes, protocol=protocol, more=drawn)
    assert script.main(words) == 0
    step = script._step

    def stopped(*args):
        if args[3] == 2:
            signal.raise_signal(signal.SIGTERM)
        return step(*args)

    monkeypatch.setattr(script, "_step", stopped)
    words = command(coco, exported, two, *changes, protocol=protocol)
    assert script.main(words) == 75 and not (two / "results.json").exists()
    assert script.main(words) == 0
    with pytest.raises(InputError, match="clip"):
        script.main([*words, "--set", "clip=2"])
    # Another network, and other images to test on: of a run that has its results, and one cut off.
    others = [shutil.copytree(exported, tmp_path / "exported"), tmp_path / "other.json"]
    stored = load_file(exported / "model.safetensors")
    save_file({k: v + 1 for k, v in stored.items()}, others[0] / "model.safetensors")
    others[1].write_text((coco / "all.json").read_text() + " ")
    for place, value in ((0, others[0]), (words.index("--val") + 1, others[1])):
        changed = [*words[:place], str(value), *words[place + 1 :]]
        for file in ("results.json", "checkpoint.pt"):
            (tmp_path / "copy").mkdir()
            shutil.copy(two / file, tmp_path / "copy")
            with pytest.raises(InputError, match=file):
                script.main([*changed, "--workdir", str(tmp_path / "copy")])
            shutil.rmtree(tmp_path / "copy")
    stored = [torch.load(x / "checkpoint.pt", weights_only=True) for x in (one, two)]
    assert stored[0]["state"]["step"] == stored[1]["state"]["step"] == 6
    assert all(torch.equal(v, stored[1]["model"][k]) for k, v in stored[0]["model"].items())
    results = [json.loads((x / "results.json").read_text()) for x in (one, two)]
    kinds = ("ap50", "mask_ap50") if protocol == "flsl_table1" else ("ap50",)
    assert all(0 <= results[0][k] == results[1][k] <= 100 for k in kinds)
    (two / "checkpoint.pt").write_bytes(b"no checkpoint")
    with pytest.raises(InputError, match="checkpoint.pt"):
        script.main(words)
    assert "| mine |" in document.read_text() and (tmp_path / "found.png").stat().st_size > 1000


def test_what_is_there_is_found(coco):
    """A detector that answers with the truth has AP 100, of boxes and masks."""
    p = settings("flsl_table1", "blocks=[1,1,2,2]")
    data = script.Images(coco / "all.json", coco, p)
    assert len(data.ids) == 5

    class Known:
        def eval(self):
            pass

        def __call__(self, batch):
            lit = batch[0][0] > 0
            count = 2 * int(lit.any())
            boxes = torch.tensor(
                [[x, y, x + w, y + h] for x, y, w, h in SQUARES], dtype=torch.float
            )
            masks = torch.zeros(2, 1, 64, 64)
            for mask, (x, y, w, h) in zip(masks, SQUARES):
                mask[0, y : y + h, x : x + w] = 1
            out = dict(boxes=boxes, labels=torch.tensor([1, 2]), scores=torch.tensor([0.9, 0.8]))
            return [{k: v[:count] for k, v in (out | dict(masks=masks)).items()}]

    result = script.measure(Known(), data, p, "cpu")
    assert result["ap"] == pytest.approx(100) and result["mask_ap"] == pytest.approx(100)
    agnostic = script.measure(
        Known(), data, SimpleNamespace(**vars(p) | dict(score="uavdt")), "cpu"
    )
    assert agnostic == {"ap50": pytest.approx(100), "ap70": pytest.approx(100)}


def test_folders_and_files_that_do_not_fit_are_refused(coco, exported, tmp_path):
    p, file = settings(), coco / "all.json"
    for text in (None, "{}", '{"architecture"'):
        if text:
            (tmp_path / "config.json").write_text(text)
            (tmp_path / "model.safetensors").write_text("no weights")
        with pytest.raises(InputError, match="export"):
            network.detector(tmp_path, p, 2)
    with pytest.raises(InputError, match="blocks"):
        network.detector(exported, settings("flsl_table1"), 2)
    content = json.loads(file.read_text())
    for broken in (
        "{",
        "[]",
        content | dict(annotations=[]),
        content | dict(categories=content["categories"][:1]),
        content | dict(annotations=[dict(content["annotations"][0], image_id=99)]),
    ):
        other = tmp_path / "other.json"
        other.write_text(broken if isinstance(broken, str) else json.dumps(broken))
        with pytest.raises(InputError, match="other.json"):
            script.Images(other, coco, p)
    for annotation in content["annotations"]:
        del annotation["segmentation"]
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match="segmentation"):
        script.Images(file, coco, settings("flsl_table1"))
    (coco / "3.png").write_text("no image")
    with pytest.raises(InputError, match="3.png"):
        script.Images(file, coco, p).open(3)
    (coco / "3.png").unlink()
    with pytest.raises(InputError, match="3.png"):
        script.Images(file, coco, p)
