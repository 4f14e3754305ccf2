"""Names of the classes of known sets, in the order of their numbers."""


def _listed(text: str) -> tuple[str, ...]:
    return tuple(" ".join(name.split()) for name in text.split(","))


# The embedded photographs, by the names of the packages that they come with
PHOTOS = _listed(
    """astronaut, brick, camera, chelsea, coffee, coins, grass, gravel, hubble_deep_field,
    immunohistochemistry, page, retina, rocket, stereo_motorcycle, text, china, flower"""
)

# Pascal VOC 2012, masks: 0 is the background
VOC = _listed(
    """background, aeroplane, bicycle, bird, boat, bottle, bus, car, cat, chair, cow, diningtable,
    dog, horse, motorbike, person, pottedplant, sheep, sofa, train, tvmonitor"""
)

# ADE20K, scene parsing challenge 2016; short forms of objectInfo150.txt
ADE20K = _listed(
    """wall, building, sky, floor, tree, ceiling, road, bed, windowpane, grass, cabinet, sidewalk,
    person, earth, door, table, mountain, plant, curtain, chair, car, water, painting, sofa, shelf,
    house, sea, mirror, rug, field, armchair, seat, fence, desk, rock, wardrobe, lamp, bathtub,
    railing, cushion, base, box, column, signboard, chest of drawers, counter, sand, sink,
    skyscraper, fireplace, refrigerator, grandstand, path, stairs, runway, case, pool table, pillow,
    screen door, stairway, river, bridge, bookcase, blind, coffee table, toilet, flower, book, hill,
    bench, countertop, stove, palm, kitchen island, computer, swivel chair, boat, bar,
    arcade machine, hovel, bus, towel, light, truck, tower, chandelier, awning, streetlight, booth,
    television receiver, airplane, dirt track, apparel, pole, land, bannister, escalator, ottoman,
    bottle, buffet, poster, stage, van, ship, fountain, conveyer belt, canopy, washer, plaything,
    swimming pool, stool, barrel, basket, waterfall, tent, bag, minibike, cradle, oven, ball, food,
    step, tank, trade name, microwave, pot, animal, bicycle, lake, dishwasher, screen, blanket,
    sculpture, hood, sconce, vase, traffic light, tray, ashcan, fan, pier, crt screen, plate,
    monitor, bulletin board, shower, radiator, glass, clock, flag"""
)

# COCO: 80 things, as numbered 0..79
COCO = _listed(
    """person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light,
    fire hydrant, stop sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant,
    bear, zebra, giraffe, backpack, umbrella, handbag, tie, suitcase, frisbee, skis, snowboard,
    sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, tennis racket, bottle,
    wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange, broccoli, carrot,
    hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining table, toilet, tv, laptop,
    mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink, refrigerator, book, clock,
    vase, scissors, teddy bear, hair drier, toothbrush"""
)

# COCO-Stuff 164K: the 80 things and 91 kinds of stuff
COCO_STUFF = COCO + _listed(
    """banner, blanket, branch, bridge, building-other, bush, cabinet, cage, cardboard, carpet,
    ceiling-other, ceiling-tile, cloth, clothes, clouds, counter, cupboard, curtain, desk-stuff,
    dirt, door-stuff, fence, floor-marble, floor-other, floor-stone, floor-tile, floor-wood, flower,
    fog, food-other, fruit, furniture-other, grass, gravel, ground-other, hill, house, leaves,
    light, mat, metal, mirror-stuff, moss, mountain, mud, napkin, net, paper, pavement, pillow,
    plant-other, plastic, platform, playingfield, railing, railroad, river, road, rock, roof, rug,
    salad, sand, sea, shelf, sky-other, skyscraper, snow, solid-other, stairs, stone, straw,
    structural-other, table, tent, textile-other, towel, tree, vegetable, wall-brick, wall-concrete,
    wall-other, wall-panel, wall-stone, wall-tile, wall-wood, water-other, waterdrops, window-blind,
    window-other, wood"""
)

# Pascal Context: the 59 most frequent classes and the background
PASCAL_CONTEXT = _listed(
    """background, aeroplane, bicycle, bird, boat, bottle, bus, car, cat, chair, cow, table, dog,
    horse, motorbike, person, pottedplant, sheep, sofa, train, tvmonitor, bag, bed, bench, book,
    building, cabinet, ceiling, cloth, computer, cup, door, fence, floor, flower, food, grass,
    ground, keyboard, light, mountain, mouse, curtain, platform, sign, plate, road, rock, shelves,
    sidewalk, sky, snow, bedclothes, track, tree, truck, wall, water, window, wood"""
)

# Cityscapes: the values of labelIds.png
CITYSCAPES_RAW = _listed(
    """unlabeled, ego vehicle, rectification border, out of roi, static, dynamic, ground, road,
    sidewalk, parking, rail track, building, wall, fence, guard rail, bridge, tunnel, pole,
    polegroup, traffic light, traffic sign, vegetation, terrain, sky, person, rider, car, truck,
    bus, caravan, trailer, train, motorcycle, bicycle"""
)
# of which these are trained and scored, numbered in this order
CITYSCAPES = _listed(
    """road, sidewalk, building, wall, fence, pole, traffic light, traffic sign, vegetation,
    terrain, sky, person, rider, car, truck, bus, train, motorcycle, bicycle"""
)
