"""What the papers claim, as data: for each claim two or more variants of a small recipe in the
paper's order, and the measures in which the first must beat the last.

The recipes are `compare:METHOD`; what a variant changes in its recipe is the paper's ablation. A
value that the recipe has anyway makes no run of its own.
"""

from typing import Any, NamedTuple


class Variant(NamedTuple):
    """One network that is measured.

    name: in the table. method: of the recipe. changes: {dotted key: value}. network: "trained" or
    "untrained". row: of ssl_jax.papers, if this is its setting at small scale; our scores are shown
    beside its numbers.
    """

    name: str
    method: str
    changes: dict[str, Any] = {}
    network: str = "trained"
    row: str = ""


class Claim(NamedTuple):
    """says: what the paper says, its numbers in the order of the variants, and where.

    variants: the paper's best first; the first is judged against the last. With a single one, its
    number is judged against 0.
    measures: {name in `claims_measure.MEASURES`: 1 if the first is higher, -1 if it is lower, 0 if
    the paper does not say: shown only}.
    within: above 0 for a claim that first and last are alike: the largest difference.
    """

    id: str
    says: str
    variants: tuple[Variant, ...]
    measures: dict[str, int]
    within: float = 0.0


STELLAR = Variant("all objectives", "stellar", row="stellar/table1/vitb16")
_NO_CLASS_TOKEN = {"stellar.cls": False, "views.local_count": 0}
_NOT_ALIGNED = _NO_CLASS_TOKEN | {"stellar.masked": False, "stellar.weights.align": 0.0}
# No decoder, so no PSNR.
_A = {"stellar.weights.reconstruction": 0.0, "evals.tasks": ("knn", "linear", "dense")}
_B = Variant(
    "reconstruction, KoLeo",
    "stellar",
    _NOT_ALIGNED | {"stellar.weights.cluster": 0.0},
    row="stellar/table5/B",
)
# With a teacher's targets, clustering itself would align two crops.
_C = _NOT_ALIGNED | {"stellar.targets": "self"}
_TOKENS = tuple(
    Variant(f"r = {r}", "stellar", {"model.queries": r}, row=row)
    for r, row in (
        (24, "stellar/figure2/r24"),
        (16, "stellar/table1/vitb16"),
        (8, "stellar/figure2/r8"),
    )
)
_ALL = {"knn": 1, "linear": 1, "dense": 1, "psnr": 1}


def _ablation(letter: str, name: str, changes: dict, says: str, measures=_ALL) -> Claim:
    """A row of STELLAR's table 5 against the full method."""
    other = Variant(name, "stellar", changes, row=f"stellar/table5/{letter}")
    return Claim(f"stellar-{letter}", f"{says} (table 5)", (STELLAR, other), measures)


_STELLAR = (
    _ablation(
        "A",
        "no reconstruction",
        _A,
        "Without reconstruction, semantics suffer a little and segmentation more: linear 73.26 to"
        " 72.44, ADE20K 31.33 to 29.94",
        {"knn": 1, "linear": 1, "dense": 1},
    ),
    _ablation(
        "B",
        _B.name,
        _B.changes,
        "Reconstruction and KoLeo alone say far less about content: linear 73.26 to 52.07, ADE20K"
        " 31.33 to 20.46, rFID 3.14 to 3.21",
    ),
    _ablation(
        "C",
        "no alignment",
        _C,
        "Without alignment it collapses: linear 73.26 to 2.73, ADE20K 31.33 to 1.93, rFID 3.14 to"
        " 8.95",
    ),
    _ablation(
        "D",
        "no clustering",
        {"stellar.weights.cluster": 0.0},
        "Without the clustering loss it collapses although views are aligned: linear 73.26 to"
        " 42.14, ADE20K 31.33 to 18.90, rFID 3.14 to 3.62",
    ),
    _ablation(
        "E",
        "no class token",
        _NO_CLASS_TOKEN,
        "Aligning the class token helps classification more than segmentation: linear 73.26 to"
        " 70.79, ADE20K 31.33 to 30.20, rFID 3.14 to 3.26",
    ),
    _ablation(
        "F",
        "no KoLeo",
        {"stellar.weights.koleo": 0.0},
        "KoLeo helps everywhere, a little: linear 73.26 to 72.05, ADE20K 31.33 to 30.10, rFID 3.14"
        " to 3.25",
    ),
    Claim(
        "stellar-r",
        "More tokens rebuild better and mean less (figure 2c)",
        _TOKENS,
        {"psnr": 1, "knn": -1, "psnr_dense": 0},
    ),
    Claim(
        "stellar-dense",
        "A decoder on the dense map rebuilds a little better than one on 16 tokens: rFID 2.85"
        " against 3.06 (table 3)",
        (STELLAR,),
        {"dense_gain": 1},
    ),
    Claim(
        "stellar-what",
        "Under shifts of the picture the tokens (what) hardly change (figure 2a)",
        (STELLAR, STELLAR._replace(name="untrained", network="untrained", row="")),
        {"what": 1},
    ),
    Claim(
        "stellar-where",
        "Under shifts of the picture the localization maps (where) move with it (figure 2a)",
        (STELLAR,),
        {"where": 1},
    ),
    Claim(
        "stellar-crops",
        "Under random crops the tokens are more stable than those of reconstruction alone (figure"
        " 2b, there TiTok's)",
        (STELLAR, _B),
        {"crops": 1},
    ),
    Claim(
        "stellar-matching",
        "Sinkhorn can take the place of exact matching (appendix; no scores)",
        (
            STELLAR._replace(name="Sinkhorn"),
            Variant(
                "Hungarian",
                "stellar",
                {"stellar.matching": "hungarian"},
                row="stellar/table13/Hungarian-matching",
            ),
        ),
        {"knn": 1, "dense": 1},
        within=2.0,
    ),
    Claim(
        "stellar-matching-cost",
        "Exact matching costs more: 180 ms against 1.2 ms for 64 images (table 13, one A100)",
        (
            Variant("Sinkhorn", "stellar", {"stellar.matching": "sinkhorn"}),
            Variant("Hungarian", "stellar", {"stellar.matching": "hungarian"}),
        ),
        {"cost": -1},
    ),
)

SOP = Variant("SOP", "sop", row="sop/table7/default")
_NO_PATCHES = Variant(
    "class token alone",
    "sop",
    {"sop.patch.weight": 0.0, "views.mask": "none"},
    row="sop/table7/CLS-alone",
)
DINO = Variant("DINO", "dino")
# Equal terms: the same patches are masked, and both have their patch objective.
_MASKS = {"views.mask": "block", "views.mask_ratio": (0.3, 0.3), "views.mask_prob": 1.0}

_SOP = (
    Claim(
        "sop-anchors",
        "With anchors that stay the same training collapses (table C.7)",
        (
            SOP._replace(name="random anchors"),
            Variant(
                "fixed anchors", "sop", {"sop.anchors": "fixed"}, row="sop/tableC.7/fixed-anchors"
            ),
        ),
        {"knn": 1, "information": 1},
    ),
    Claim(
        "sop-contributions",
        "Soft contributions are slightly better than one-hot ones: k-NN 70.0, 69.7 (table 9)",
        (
            SOP._replace(name="soft"),
            Variant("one-hot", "sop", {"sop.contributions": "onehot"}, row="sop/table9/one-hot"),
        ),
        {"knn": 1},
    ),
    Claim(
        "sop-members",
        "Support embeddings help the class token: k-NN 70.0 with 8, 69.3 with the anchor alone"
        " (table 8)",
        (
            SOP._replace(name="several members"),
            Variant("anchor alone", "sop", {"sop.cls.members": 1}, row="sop/table8/MIM1-CLS1"),
        ),
        {"knn": 1},
    ),
    Claim(
        "sop-mim",
        "Both objectives are better than the class token's alone: k-NN 70.0, 68.9, linear 74.3,"
        " 72.8 (table 7); masked patches improve dense tasks (section 1)",
        (SOP._replace(name="both objectives"), _NO_PATCHES),
        {"knn": 1, "linear": 1, "dense": 1},
    ),
    Claim(
        "sop-ibot",
        "Both objectives: SOP is better than iBOT, k-NN 70.0, 69.1, linear 74.3, 74.2 (table 7)",
        (SOP, Variant("iBOT", "ibot", row="ibot/SOP-table7/both-losses")),
        {"knn": 1, "linear": 1},
    ),
    Claim(
        "sop-dino",
        "Class token alone: SOP is better than DINO, k-NN 68.9, 67.9, linear 72.8, 72.5 (table 7)",
        (
            _NO_PATCHES._replace(name="SOP, class token alone"),
            DINO._replace(row="dino/SOP-table7/DINO"),
        ),
        {"knn": 1, "linear": 1},
    ),
    Claim(
        "sop-cost",
        "SOP costs as much as iBOT: 193.5 and 193.4 hours (table B.1)",
        (
            Variant("SOP", "sop", _MASKS | {"sop.patch.weight": 1.0}),
            Variant("iBOT", "ibot", _MASKS | {"ibot.patch.weight": 1.0}),
        ),
        {"cost": 1},
        within=10.0,
    ),
    Claim(
        "sop-massl",
        "SOP is slightly better than MaSSL: k-NN 75.3, 75.1, linear 77.9, 77.8 (SOP table 1)",
        (SOP, Variant("MaSSL", "massl", row="massl/SOP-table1/vits16")),
        {"knn": 1, "linear": 1},
    ),
    Claim(
        "massl-dino",
        "MaSSL is better than DINO: k-NN 75.1, 74.5, linear 77.8, 77.0 (SOP table 1)",
        (Variant("MaSSL", "massl", row="massl/SOP-table1/vits16"), DINO),
        {"knn": 1, "linear": 1},
    ),
    Claim(
        "sove-sop",
        "SOVE and SOP are alike: k-NN 75.2, 75.3, linear 77.8, 77.9 (table 1 of each)",
        (Variant("SOVE", "sove", row="sove/table1/vits16"), SOP),
        {"knn": 1, "linear": 1},
        within=2.0,
    ),
)

FLSL = Variant("FLSL", "flsl", row="flsl/table1/vits16/paper")
_FLSL = (
    Claim(
        "flsl-v",
        "Without the pull of tokens to their modes it collapses: box k-NN 71.2, 0.1 (table 5, with"
        " Sinkhorn)",
        (
            FLSL._replace(name="with the pull"),
            Variant("v = 0", "flsl", {"flsl.v": 0.0}, row="flsl/table5/Sinkhorn-gamma1-v0.0/paper"),
        ),
        {"dense": 1, "purity": 1},
    ),
    Claim(
        "flsl-crops",
        "If student views are no crops of the teacher's it collapses (appendix E.3)",
        (
            FLSL._replace(name="nested crops"),
            Variant(
                "symmetric crops",
                "flsl",
                {
                    "flsl.nested": False,
                    "flsl.student_scale": (0.4, 1.0),
                    "views.global_scale": (0.4, 1.0),
                },
                row="flsl/appendixE.3/symmetric-crops/paper",
            ),
        ),
        {"dense": 1},
    ),
    Claim(
        "flsl-modes",
        "Training lets a token's mode come from the token's own region (eq. 8, figure 4b)",
        (
            FLSL._replace(name="trained"),
            FLSL._replace(name="untrained", network="untrained", row=""),
        ),
        {"purity": 1},
    ),
    Claim(
        "flsl-depth",
        "The deeper the block, the more similarity of tokens follows objects (figure 3)",
        (FLSL,),
        {"purity_gain": 1},
    ),
    Claim(
        "flsl-dino",
        "Similarity of tokens follows objects more than with DINO (figure 6)",
        (FLSL, DINO),
        {"purity": 1},
    ),
)

CRIBO = Variant("CrIBo", "cribo", row="cribo/table1/vits16_coco")
_CLUSTERS = tuple(
    Variant(f"K = {k}", "cribo", {"cribo.clusters": k}, row=f"cribo/table4/K{k}") for k in (16, 4)
)
_CRIBO = (
    Claim(
        "cribo-cross-image",
        "Learning across images helps: dense VOC 58.1, 47.1, ADE20K 23.4, 18.3 without it (table"
        " 5)",
        (
            CRIBO._replace(name="with L_ci"),
            Variant(
                "no L_ci", "cribo", {"cribo.cross_image_weight": 0.0}, row="cribo/table5/L_g+L_cv"
            ),
        ),
        {"dense": 1},
    ),
    Claim(
        "cribo-cycle",
        "Cycle consistency steadies training: dense VOC 69.9 on average and 68.0 at least, 68.8 and"
        " 49.1 without it (table 8)",
        (
            CRIBO._replace(name="cycles only"),
            Variant("all neighbours", "cribo", {"cribo.cycle": False}, row="cribo/table8/none"),
        ),
        {"dense": 1},
    ),
    Claim(
        "cribo-position",
        "The positional cue helps: dense VOC 58.1, 55.9 without it (table 4)",
        (
            CRIBO._replace(name="with the cue"),
            Variant(
                "lambda_pos = 0",
                "cribo",
                {"cribo.position_weight": 0.0},
                row="cribo/table12/lambda_pos0-K64",
            ),
        ),
        {"dense": 1},
    ),
    Claim(
        "cribo-clusters",
        "More clusters than objects help: dense VOC 54.6 with K = 16, 49.9 with K = 4 (table 4)",
        _CLUSTERS,
        {"dense": 1},
    ),
    Claim(
        "cribo-ratio",
        "More clusters, fewer neighbours that lead back (appendix C.6)",
        _CLUSTERS,
        {"bootstrapping": -1},
    ),
)

_BLUNT = {
    "dino.student_temperature": 0.1,
    "dino.teacher_temperature": 0.1,
    "dino.final_teacher_temperature": 0.1,
}
_DINO = (
    Claim(
        "dino-centering",
        "Without centering it collapses to one prototype (DINO section 5.3)",
        (DINO, Variant("no centering", "dino", {"dino.centering": False})),
        {"knn": 1, "information": 1},
    ),
    Claim(
        "dino-sharpening",
        "Without sharpening (the student's temperature for the teacher) it collapses to uniform"
        " targets (DINO section 5.3)",
        (DINO, Variant("no sharpening", "dino", _BLUNT)),
        {"knn": 1, "information": 1},
    ),
)

# {table in docs/results.md: its claims}
PAPERS = {
    "STELLAR": _STELLAR,
    "SOP, SOVE and MaSSL": _SOP,
    "FLSL": _FLSL,
    "CrIBo": _CRIBO,
    "DINO": _DINO,
}
