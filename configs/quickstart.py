"""SOP on windows of photographs: the whole job in minutes, on a CPU, without a download.

    bash launch/quickstart.sh
    ssl-jax train --config=quickstart --workdir=runs/quickstart

Hardware: 2 CPU cores.
Expected time: under 8 minutes.
Expected number: see docs/results.md, which also has the baselines.

The recipe is SOP's of configs/small.py, scaled down from the paper's ViT-S/16 on ImageNet: the
network and the crops, so that a step takes a fraction of a second; memory, anchors and batch
together, so that the memory holds some sixty batches. What a run this short needs beside it:
- the initialiser at 1/sqrt(width), because .02 leaves a narrow network with almost constant
  outputs, and position embeddings at the same scale;
- no jitter of colours, as brightness and hue tell photographs apart: k-NN is 6 points better after
  1000 steps; every fifth view is gray, as the collages are;
- small crops beside the large ones, and the mean of the patch tokens for the image instead of the
  class token, which together give patches a meaning: dense mIoU .8 points better, linear 1.1;
- masks on half of the views, as in iBOT, and a fifth of the weight for the patch loss;
- temperatures of .15 and .015 and a momentum of .99: with the paper's .1 and .04 the targets stay
  uniform, and with a faster teacher some seeds collapse in the first hundred steps.
"""

from ssl_jax import evals

from . import small


def get_config():
    config = small.start("sop", "photos")
    config.optim.steps = 1600
    counts = dict(train_examples=2000, test_examples=2000)
    evals.add(config, "knn", "linear", "rank", data=dict(kind="training", size=32), **counts)
    counts = dict(train_examples=500, test_examples=500)
    # Of the photographs, collages have masks.
    evals.add(config, "dense", data=dict(kind="training", size=64), **counts)
    config.evals.tasks, config.evals.every_steps = ("knn", "linear", "dense"), 800
    config.evals.linear.epochs, config.evals.picture_size = 100, 96
    return config
