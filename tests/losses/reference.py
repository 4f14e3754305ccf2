"""Float64 NumPy references of the ops and losses, written from the papers' equations and not from
our code.

SOP is written with the dense contribution matrix Y [K*M, K] and its softmax over all K*M members;
gradients are worked out by the chain rule through that matrix. Everything loops over views, tasks
and images where the equation has a sum."""

import os

import numpy as np


def log_sum_exp(x, axis):
    top = x.max(axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        return np.squeeze(top, axis) + np.log(np.exp(x - top).sum(axis=axis))


def log_softmax(x):
    x = np.asarray(x, np.float64)
    return x - log_sum_exp(x, -1)[..., None]


def entropy(p):
    p = np.asarray(p, np.float64)
    return -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=-1)


def usage(scores):
    """Share of columns that are the largest of one row or more."""
    scores = np.asarray(scores)
    return len(set(scores.argmax(axis=-1).ravel())) / scores.shape[-1]


# SOP, section 2.2


def shares(similarity, rule, smoothing=0.1):
    """s_j [K, M], the similarity of a member to its anchor (section 2.2); the anchor is the last
    member.
    """
    k, m = similarity.shape
    if rule == "onehot" or k == 1:
        return np.ones((k, m))
    s = np.full((k, m), 1 - smoothing)
    if rule == "similarity":
        s[:, :-1] = similarity[:, :-1]
    return np.minimum(np.maximum(s, 1 / k), 1 - 1e-4)


def contributions(s):
    """Y [K*M, K] from shares [K, M]: row j gives s_j to its own SOP and (1 - s_j) / (K - 1) to each
    other one.
    """
    k, m = s.shape
    y = np.zeros((k * m, k))
    for i in range(k):
        for j in range(m):
            y[i * m + j, :] = (1 - s[i, j]) / max(k - 1, 1)
            y[i * m + j, i] = s[i, j]
    return y / y.sum(axis=1, keepdims=True)


def vote(u, members, s, tau):
    """log P [..., K] = log(softmax(u D^T / tau) Y), summed in the log domain so that tiny
    probabilities survive.
    """
    k, m, d = members.shape
    log_p = log_softmax(
        np.asarray(u, np.float64) @ members.astype(np.float64).reshape(k * m, d).T / tau
    )
    with np.errstate(divide="ignore"):
        return log_sum_exp(
            log_p[..., :, None] + np.log(contributions(np.asarray(s, np.float64))), -2
        )


def vote_gradient(u, members, s, tau, cotangent):
    """Gradient [..., d] of sum(cotangent * log P) with respect to u, through Y and the softmax over
    members.
    """
    k, m, d = members.shape
    flat = members.astype(np.float64).reshape(k * m, d)
    p = np.exp(log_softmax(np.asarray(u, np.float64) @ flat.T / tau))
    y = contributions(np.asarray(s, np.float64))
    by_prediction = cotangent / (p @ y)
    by_member = by_prediction @ y.T
    by_logit = p * (by_member - (p * by_member).sum(axis=-1, keepdims=True))
    return by_logit @ flat / tau


def sop(student, teacher, members, weights, tau_s, tau_t):
    """Loss, its gradient with respect to student [V, B, d], mean teacher entropy, entropy of the
    mean target.
    """
    num_views, batch, _ = student.shape
    tasks = members.shape[0]
    loss, gradient, each, marginal = 0.0, np.zeros(student.shape), 0.0, 0.0
    for task in range(tasks):
        q = np.exp(vote(teacher, members[task], weights[task], tau_t))
        each += entropy(q).mean() / tasks
        marginal += entropy(q.reshape(-1, q.shape[-1]).mean(axis=0)) / tasks
        for s in range(num_views):
            for t in range(2):
                if s != t:
                    scale = 1 / ((2 * num_views - 2) * batch * tasks)
                    log_p = vote(student[s], members[task], weights[task], tau_s)
                    loss -= scale * (q[t] * log_p).sum()
                    gradient[s] += vote_gradient(
                        student[s], members[task], weights[task], tau_s, -scale * q[t]
                    )
    return loss, gradient, each, marginal


def sop_patch(student, teacher, members, weights, masks, tau_s, tau_t):
    """Loss, its gradient with respect to student [2, B, n, d], and mean KL(teacher || student) over
    masked patches.
    """
    num_views, batch, num_patches, _ = student.shape
    tasks = members.shape[0]
    loss, gradient, kl = 0.0, np.zeros(student.shape), 0.0
    for task in range(tasks):
        for v in range(num_views):
            for b in range(batch):
                for patch in range(num_patches):
                    if not masks[v, b, patch]:
                        continue
                    scale = 1 / (num_views * batch * tasks * max(1, masks[v, b].sum()))
                    arguments = (members[task], weights[task])
                    q = np.exp(vote(teacher[v, b, patch], *arguments, tau_t))
                    h = -(q * vote(student[v, b, patch], *arguments, tau_s)).sum()
                    loss += scale * h
                    kl += (h - entropy(q)) / (masks.sum() * tasks)
                    gradient[v, b, patch] += vote_gradient(
                        student[v, b, patch], *arguments, tau_s, -scale * q
                    )
    return loss, gradient, kl


# Parts that several objectives share


def meters(q):
    """What `losses.assignment_meters` tells of targets q [..., K]; of no target: 0."""
    q = q.reshape(-1, q.shape[-1])
    if not len(q):
        return dict.fromkeys(("teacher_entropy", "marginal_entropy", "usage"), 0.0)
    return {
        "teacher_entropy": entropy(q).mean(),
        "marginal_entropy": entropy(q.mean(axis=0)),
        "usage": usage(q),
    }


def centered(teacher, center, tau):
    return np.exp(log_softmax((teacher - center) / tau))


def cross(q, logits, tau):
    """H(q, softmax(logits / tau)) of the last axis, and its gradient with respect to the logits."""
    log_p = log_softmax(logits / tau)
    return -(q * log_p).sum(axis=-1), (np.exp(log_p) - q) / tau


def sinkhorn(scores, tau, iterations=3):
    """Balanced assignments of the rows of [..., K]: columns divided by their sum, then rows, from
    exp(scores / tau); in logarithms.
    """
    log_q = scores.reshape(-1, scores.shape[-1]) / tau
    for _ in range(iterations):
        log_q = log_q - log_sum_exp(log_q, 0)[None]
        log_q = log_q - log_sum_exp(log_q, 1)[:, None]
    return np.exp(log_q).reshape(scores.shape)


def koleo(tokens):
    """Minus the mean log of half the distance of a token of [..., r, d] to its nearest one."""
    total, sets = 0.0, tokens.reshape(-1, *tokens.shape[-2:])
    for rows in sets:
        u = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
        for i in range(len(u)):
            others = [j for j in range(len(u)) if j != i]
            if others:
                near = max(others, key=lambda j: u[i] @ u[j])
                total -= np.log(np.linalg.norm(u[i] - u[near] + 1e-8) / 2 + 1e-8)
    return total / (len(sets) * len(sets[0]))


# DINO, eq. 2 and 3; iBOT, eq. 2; DINOv2, section 4


def dino(student_logits, teacher_logits, center, student_temperature, teacher_temperature):
    """Terms, and the gradient of the loss with respect to student_logits [S, B, K]."""
    q = centered(teacher_logits, center, teacher_temperature)
    local = range(len(q), len(student_logits))
    groups = {"local_loss": local, "global_loss": range(len(q)), "loss": range(len(student_logits))}
    terms, gradient = meters(q), np.zeros(student_logits.shape)
    for name, views in groups.items():
        pairs = [(s, t) for s in views for t in range(len(q)) if s != t]
        for s, t in pairs:
            h, slope = cross(q[t], student_logits[s], student_temperature)
            terms[name] = terms.get(name, 0) + h.mean() / len(pairs)
            if name == "loss":
                gradient[s] += slope / (len(pairs) * len(h))
    terms["kl"] = terms["loss"] - terms["teacher_entropy"]
    return terms, {"student_logits": gradient}


def ibot_patch(
    student_logits, teacher_logits, masks, center, student_temperature, teacher_temperature
):
    """Terms, and the gradient of the loss with respect to student_logits [V, B, n, K]."""
    q = centered(teacher_logits, center, teacher_temperature)
    h, slope = cross(q, student_logits, student_temperature)
    share = masks / np.maximum(1, masks.sum(axis=-1, keepdims=True)) / masks[..., 0].size
    kl = ((h - entropy(q)) * masks).sum() / max(1, masks.sum())
    terms = {"loss": (share * h).sum(), "kl": kl, "masked": masks.mean(), **meters(q)}
    return terms, {"student_logits": share[..., None] * slope}


def ibot_patch_fused(student, teacher, masks, student_prototypes, teacher_prototypes, center,
                     student_temperature, teacher_temperature, chunk=None):  # fmt: skip
    scores = student @ student_prototypes, teacher @ teacher_prototypes
    terms, slopes = ibot_patch(*scores, masks, center, student_temperature, teacher_temperature)
    slope = slopes["student_logits"]
    by_prototypes = np.einsum("vbnd,vbnk->dk", student, slope)
    return terms, {"student": slope @ student_prototypes.T, "student_prototypes": by_prototypes}


def ibot(student_cls, teacher_cls, student_patch, teacher_patch, masks, cls_center, center,
         student_temperature, teacher_temperature, patch_teacher_temperature,
         weights):  # fmt: skip
    targets = teacher_temperature, patch_teacher_temperature
    taus = [(student_temperature, tau) for tau in targets]
    cls, by_cls = dino(student_cls, teacher_cls, cls_center, *taus[0])
    patch, by_patch = ibot_patch(student_patch, teacher_patch, masks, center, *taus[1])
    terms = {f"cls_{name}": value for name, value in cls.items()}
    terms |= {f"patch_{name}": value for name, value in patch.items()}
    terms["loss"] = weights[0] * cls["loss"] + weights[1] * patch["loss"]
    gradients = {"student_cls": weights[0] * by_cls["student_logits"]}
    return terms, gradients | {"student_patch": weights[1] * by_patch["student_logits"]}


TEMPERATURES = "student_temperature", "teacher_temperature", "patch_teacher_temperature"


def dinov2(tokens, student_temperature, teacher_temperature, weights, **x):
    tau_s, tau_t = student_temperature, teacher_temperature

    def center(rows):
        """-tau_t times Sinkhorn's factors of columns, up to a constant that no softmax sees."""
        rows = rows.reshape(-1, rows.shape[-1])
        return rows[0] - tau_t * np.log(sinkhorn(rows, tau_t)[0])

    centers = center(x["teacher_cls"]), center(x["teacher_patch"][x["masks"]])
    x |= dict(zip(("cls_center", "center"), centers))
    taus = dict(zip(TEMPERATURES, (tau_s, tau_t, tau_t)))
    terms, gradients = ibot(**x, **taus, weights=weights[:2])
    terms["koleo"] = batch_koleo(tokens)["loss"]
    terms["loss"] += weights[2] * terms["koleo"]
    slope = slopes(lambda x: batch_koleo(x)["loss"], tokens)
    return terms, gradients | {"tokens": weights[2] * slope}


def batch_koleo(tokens):
    return {"loss": sum(koleo(view) for view in tokens)}


# Gram anchoring: DINOv3


def gram(student, teacher, over="image", negatives="keep"):
    """Every pair of patches by itself."""

    def cosines(rows):
        lengths = np.linalg.norm(rows, axis=-1)
        lengths = np.where(lengths > 0, lengths, 1)
        return np.array(
            [[x @ y / (a * b) for y, b in zip(rows, lengths)] for x, a in zip(rows, lengths)]
        )

    sets = [x.reshape(-1, *x.shape[-2:]) for x in (student, teacher)]
    if over == "batch":
        sets = [x.reshape(1, -1, x.shape[-1]) for x in sets]
    gaps = []
    for x, y in zip(*sets):
        s, g = cosines(x), cosines(y)
        if negatives != "keep":
            g[g < 0] = 0
        if negatives == "remove":
            s[s < 0] = 0
        gaps.append((s - g) ** 2)
    return {"loss": np.mean(gaps)}


# CrIBo, eq. 5 to 10


def cribo_images(student, teacher, center, tau_s, tau_t):
    """Terms, and the gradient of the loss with respect to student [2, B, P]."""
    q = centered(teacher, center, tau_t)
    h, slope = cross(q, student[::-1], tau_s)
    return {"loss": h.mean(), **meters(q)}, slope[::-1] / h.size


def cribo_objects(student, teacher, valid, center, tau_s, tau_t, weights, neighbours=None,
                  cycle=None, counts="own"):  # fmt: skip
    """Terms, and the gradient of their weighted sum with respect to student [2, B, K, P]."""
    q = centered(teacher, center, tau_t)
    h, slope = cross(q, student[::-1], tau_s)
    share = valid / (2 * max(1, valid.sum()))
    terms = {"cross_view_loss": (share * h).sum(), **meters(q[:, valid])}
    terms["loss"] = weights[0] * terms["cross_view_loss"]
    gradient = weights[0] * share[..., None] * slope
    if cycle is not None:
        h, slope = cross(centered(neighbours, center, tau_t), student[::-1], tau_s)
        closed = cycle & valid
        number = closed.sum(axis=(1, 2), keepdims=True)
        number = number if counts == "own" else number[[0, 0]]
        share = np.where(number, closed / (2 * np.maximum(1, number)), 0)
        terms["cross_image_loss"] = (share * h).sum()
        terms["loss"] += weights[1] * terms["cross_image_loss"]
        gradient = gradient + weights[1] * share[..., None] * slope
    return terms, gradient[::-1]


def cribo(function, chunk=None, **x):
    """Of `function`, for embeddings times prototypes where there are any, else for logits."""
    embeddings = x["student"]
    own, others = (x.pop(f"{who}_prototypes", None) for who in ("student", "teacher"))
    for name, prototypes in (("student", own), ("teacher", others), ("neighbours", others)):
        if prototypes is not None and name in x:
            x[name] = x[name] @ prototypes
    terms, slope = function(**x)
    if own is None:
        return terms, {"student": slope}
    rows = (x.reshape(-1, x.shape[-1]) for x in (embeddings, slope))
    by_prototype = np.einsum("nd,np->dp", *rows)
    return terms, {"student": slope @ own.T, "student_prototypes": by_prototype}


# FLSL, eq. 8, 11 and 13


def batch_softmax(teacher_logits, temperature):
    """Softmax over the tokens, then over the centroids."""
    flat = teacher_logits.reshape(-1, teacher_logits.shape[-1]) / temperature
    return {"log_targets": log_softmax(log_softmax(flat.T).T).reshape(teacher_logits.shape)}


def flsl(tokens, modes, student_logits, log_targets, weights, student_temperature, prior=None):
    """The equations, token by token."""
    arrays = tokens, modes, student_logits, log_targets
    tokens, modes, student, log_targets = (x.reshape(-1, x.shape[-1]) for x in arrays)
    tau = student_temperature
    n, k = student.shape
    intra, inter, mean = 0.0, 0.0, np.zeros(k)
    for q, z, s, t in zip(tokens, modes, student, log_targets):
        intra += (2 - 2 * (q @ z) / (np.linalg.norm(q) * np.linalg.norm(z))) / n
        inter += cross(np.exp(t), s, tau)[0] / n
        mean += np.exp(log_softmax(s / tau)) / n
    prior = np.full(k, 1 / k) if prior is None else prior
    volume = -entropy(mean) - mean @ np.log(prior)
    terms = {"intra_loss": intra, "inter_loss": inter, "volume_loss": volume}
    terms["loss"] = np.dot(weights, list(terms.values()))
    terms |= meters(np.exp(log_targets))
    return terms | {"kl": inter - terms["teacher_entropy"], "prediction_entropy": entropy(mean)}


# MAE, section 3

PATCH = ("rows", "mean", "scale")


def normalized(patch):
    """A patch minus its mean, over the root of its unbiased variance; that mean and that root."""
    mean = patch.sum() / len(patch)
    scale = np.sqrt(((patch - mean) ** 2).sum() / (len(patch) - 1) + 1e-6)
    return (patch - mean) / scale, mean, scale


def normalize_patches(pixels):
    parts = zip(*map(normalized, pixels.reshape(-1, pixels.shape[-1])))
    lead = pixels.shape[:-1]
    return {name: np.stack(part).reshape(*lead, -1) for name, part in zip(PATCH, parts)}


def mae(predicted, pixels, mask, normalize_pixels):
    """Terms, and the gradient of the loss with respect to predicted [B, n, P]."""
    loss, gradient, flat = 0.0, np.zeros(predicted.shape), 0.0
    for b, i in zip(*np.nonzero(mask)):
        target = normalized(pixels[b, i])[0] if normalize_pixels else pixels[b, i]
        error = predicted[b, i] - target
        loss += (error**2).mean() / mask.sum()
        flat += ((target - target.mean()) ** 2).mean() / mask.sum()
        gradient[b, i] = 2 * error / len(target) / mask.sum()
    explained = 1 - loss / flat if flat else 0
    terms = {"loss": loss, "variance": flat, "explained": explained, "masked": mask.mean()}
    return terms, {"predicted": gradient}


def distillation(student, teacher, cosine, smooth_l1):
    """Vector by vector."""
    similarity, smooth = [], []
    for s, t in zip(student.reshape(-1, 6), teacher.reshape(-1, 6)):
        z = (t - t.mean()) / np.sqrt(((t - t.mean()) ** 2).mean() + 1e-6)
        norms = np.linalg.norm(s) * np.linalg.norm(z)
        similarity.append(s @ z / norms if norms else 0.0)
        smooth.append(np.mean([x**2 / 2 if x < 1 else x - 0.5 for x in abs(s - z)]))
    terms = {"cosine": np.mean(similarity), "smooth_l1": np.mean(smooth)}
    loss = cosine * (1 - terms["cosine"]) + smooth_l1 * terms["smooth_l1"]
    return {"loss": loss, **terms}


# STELLAR, eq. 3 to 6


PARTS = {  # weight -> its terms
    "reconstruction": ["reconstruction_loss"],
    "cluster": ["cluster_loss", "cls_cluster_loss"],
    "align": ["align_loss", "cls_align_loss", "cls_local_loss"],
    "koleo": ["koleo", "masked_koleo"],
}
PUBLISHED = {"reconstruction": 10.0, "cluster": 1.0, "align": 1.0, "koleo": 0.1}


def stellar(constants=None, *, weights, student_temperature, teacher_temperature, **x):
    """Terms of what is there of the arrays of `cases.stellar`; the targets are made of
    `constants`, the same arrays as a rule.
    """
    constants, tau_t, tau_s = constants or x, teacher_temperature, student_temperature
    if weights is None:
        codes = x["target"].dtype.kind == "i"
        weights = PUBLISHED | ({"reconstruction": 0.05} if codes else {})

    def product(rows, kind, of=x):
        prototypes = of.get(f"{kind}_prototypes")
        return rows if prototypes is None else rows @ prototypes.T

    terms = {}
    for kind, prefix in (("token", ""), ("cls", "cls_")):
        main, scores = x.get(f"{kind}_logits"), constants.get(f"teacher_{kind}_logits")
        teacher = scores is not None
        if main is None and not teacher:
            continue
        q = sinkhorn(scores if teacher else product(constants[f"{kind}_logits"], kind, constants),
                     tau_t)  # fmt: skip
        terms |= {f"{kind}_{name}": value for name, value in meters(q).items()}
        images = np.arange(len(q))
        if main is not None:
            own = q[images[:, None], x["token_matches"]] if teacher and kind == "token" else q
            terms[f"{prefix}cluster_loss"] = cross(own, product(main, kind), tau_s)[0].mean()
        for view, term in (("masked", "align"), ("local", "local")):
            rows = x.get(f"{view}_{kind}_logits")
            if rows is not None:
                cell = images[:, None, None]
                goal = q[cell, x["matches"]] if kind == "token" else q[:, None]
                logits = product(rows, kind)
                terms[f"{prefix}{term}_loss"] = cross(goal, logits, tau_s)[0].mean()
                if view == "masked":
                    same = logits.argmax(axis=-1) == goal.argmax(axis=-1)
                    terms["cls_agreement" if prefix else "match_agreement"] = same.mean()
    for name, term in (("tokens", "koleo"), ("masked_tokens", "masked_koleo")):
        if name in x:
            terms[term] = koleo(x[name])
    if "reconstruction" in x:
        guess, goal = x["reconstruction"], x["target"]
        if goal.dtype.kind == "i":
            picked = np.take_along_axis(log_softmax(guess), goal[..., None], axis=-1)
            terms["reconstruction_loss"] = -picked.mean()
            terms["code_accuracy"] = (guess.argmax(axis=-1) == goal).mean()
        else:
            error = np.square(guess - goal).mean(axis=(1, 2))
            terms["reconstruction_loss"] = error.mean()
            terms["psnr"] = np.mean(-10 * np.log10(np.maximum(error, 1e-10)))
    terms["loss"] = sum(
        weights[part] * terms.get(name, 0) for part, names in PARTS.items() for name in names
    )
    return terms


# DETR, eq. 1 and 2; losses of segmentation


def generalized_iou(a, b):
    """GIoU of two boxes (centre row, centre column, height, width)."""
    low = np.maximum(a[:2] - a[2:] / 2, b[:2] - b[2:] / 2)
    high = np.minimum(a[:2] + a[2:] / 2, b[:2] + b[2:] / 2)
    shared = np.prod(np.maximum(high - low, 0))
    union = a[2] * a[3] + b[2] * b[3] - shared
    least = np.minimum(a[:2] - a[2:] / 2, b[:2] - b[2:] / 2)
    around = np.prod(np.maximum(a[:2] + a[2:] / 2, b[:2] + b[2:] / 2) - least)
    return shared / union - (around - union) / around


def matching_costs(logits, boxes, labels, targets, present):
    costs = np.zeros((*logits.shape[:2], labels.shape[1]))
    for b, q, t in np.ndindex(costs.shape):
        if present[b, t]:
            probability = np.exp(log_softmax(logits[b, q]))[labels[b, t]]
            distance = np.abs(boxes[b, q] - targets[b, t]).sum()
            overlap = generalized_iou(boxes[b, q], targets[b, t])
            costs[b, q, t] = 5 * distance - probability - 2 * overlap
    return {"costs": costs}


def detr(logits, boxes, labels, targets, present, matched):
    total = weight = l1 = giou = 0.0
    nothing = logits.shape[-1] - 1
    for b, rows in enumerate(logits):
        answers = {matched[b, t]: t for t in np.flatnonzero(present[b])}
        for q, row in enumerate(rows):
            wanted, w = (labels[b, answers[q]], 1.0) if q in answers else (nothing, 0.1)
            total -= w * log_softmax(row)[wanted]
            weight += w
        for q, t in answers.items():
            l1 += np.abs(boxes[b, q] - targets[b, t]).sum()
            giou += 1 - generalized_iou(boxes[b, q], targets[b, t])
    count = max(1, present.sum())
    terms = {"class_loss": total / weight, "l1_loss": l1 / count, "giou_loss": giou / count}
    return {"loss": np.dot((1, 5, 2), list(terms.values())), **terms}


def pixel_cross_entropy(logits, labels, average):
    there = labels != 255
    total = -sum(log_softmax(x)[c] for x, c in zip(logits[there], labels[there]))
    return {"loss": total / max(1, labels.size if average == "all" else there.sum())}


def dice(logits, labels):
    there = labels != 255
    p, labels, values = np.exp(log_softmax(logits[there])), labels[there], []
    for c in range(logits.shape[-1]):
        hit, both = 0.0, 0.0
        for row, label in zip(p, labels):
            hit += row[c] * (label == c)
            both += row[c] + (label == c)
        values.append(1 - (2 * hit + 1) / (both + 1))
    return {"loss": np.mean(values) if len(p) else 0.0}


# Helpers of the tests


def unit(rng, *shape):
    """Random unit vectors, float32."""
    x = rng.normal(size=shape)
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def close(got, want, relative=1e-5, absolute=1e-6):
    """Asserts |got - want| <= relative * max |want|, or <= absolute; nothing may be NaN or
    infinite. Accelerators, whose products take three passes of bfloat16, may be off by 50 times as
    much (seen on an H200: 37, in the gradient of CrIBo's prototypes).
    """
    if os.environ["JAX_PLATFORMS"] != "cpu":
        relative, absolute = 50 * relative, 50 * absolute
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    assert np.isfinite(got).all()
    bound = max(relative * np.abs(want).max(initial=0), absolute)
    worst = np.abs(got - want).max(initial=0)
    assert worst <= bound, f"off by {worst}, allowed {bound}"


def slopes(function, x, step=1e-5):
    """Central differences of a float64 function of x."""
    gradient = np.zeros(np.shape(x))
    for place in np.ndindex(gradient.shape):
        ends = []
        for sign in (1, -1):
            moved = np.array(x, np.float64)
            moved[place] += sign * step
            ends.append(function(moved))
        gradient[place] = (ends[0] - ends[1]) / (2 * step)
    return gradient
