"""Losses between the samples of a batch, as formulas over embeddings and labels.

Here are the four losses of *Spherical Embedding Constraint* as its authors compute them
(Dyfine/SphericalEmbedding, loss.py), the variants of N-pairs that are often taken for one another,
and those of pytorch-metric-learning's losses whose own form breaks down: its NT-Xent takes
exponentials before the logarithm and loses the gradient of hard pairs at low temperatures; its
tuplet margin has no gradient for parallel embeddings; lifted structure and the contrastive loss on
signal-to-noise ratios take seconds at batches of 256.

All take raw embeddings ``(N, D)``, float32 or float64, and labels ``(N,)``, and return a scalar.
Cosines are computed here, so all but ``npair_inner_product_l2`` see directions only. Where a batch
holds no pair to learn from, the loss is 0 with a gradient of zeros.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from facerec.heads.margins import angles
from facerec.heads.tiles import SMALLEST_NORM

_SAME_IMAGE = 1e-5  # positives this close to cosine 1 are dropped by the multi-similarity loss
_CUTOFF = 0.5  # Wu et al. (2017): nearer negatives count as if at this distance
_FARTHEST = 1.4  # and farther ones are not drawn, as they would give no loss


def unit_vectors(embeddings: Tensor) -> Tensor:
    """Divide embeddings ``(N, D)`` by their norms."""
    return embeddings / embeddings.norm(dim=1, keepdim=True).clamp(min=SMALLEST_NORM)


def triplet_all(embeddings: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Mean over all valid triplets, zeros included, of [m + D_ap − D_an]₊ with D = 2 − 2·cos."""
    cosine, positive, negative = _cosines(embeddings, labels)
    distance = 2 - 2 * cosine
    anchor, other = positive.nonzero(as_tuple=True)
    violation = margin + distance[anchor, other][:, None] - distance[anchor]
    valid = negative[anchor]
    return (violation.relu() * valid).sum() / valid.sum().clamp(min=1)


def semihard_triplet(embeddings: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Mean over positive pairs of [m + D_ap − D_an]₊ with one negative for each pair.

    It is the nearest negative that is farther than the positive, else the farthest negative.
    """
    cosine, positive, negative = _cosines(embeddings, labels)
    distance = 2 - 2 * cosine
    anchor, other = (positive & negative.any(1, keepdim=True)).nonzero(as_tuple=True)
    to_positive, to_all, valid = distance[anchor, other], distance[anchor], negative[anchor]
    outside = valid & (to_all > to_positive[:, None])
    nearest = to_all.masked_fill(~outside, torch.inf).min(1).values
    farthest = to_all.masked_fill(~valid, -torch.inf).max(1).values
    to_negative = torch.where(outside.any(1), nearest, farthest)
    return (margin + to_positive - to_negative).relu().sum() / max(1, len(anchor))


def npair_normalized(embeddings: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Cross-entropy from the first sample of each class to the second ones, logits s·cos.

    The authors multiply unit vectors by 5, which is s = 25. Classes with one sample are left out.
    """
    unit = unit_vectors(embeddings)
    anchor, positive = first_pairs(labels)
    return _cross_entropy_to_own(scale * unit[anchor] @ unit[positive].T)


def npair_inner_product_l2(embeddings: Tensor, labels: Tensor, l2_weight: float) -> Tensor:
    """N-pairs as first published (Sohn, NeurIPS 2016, §3.2.2): inner products and λ·mean ‖f‖².

    The mean is over the samples that take part: the first two of each class.
    """
    anchor, positive = first_pairs(labels)
    loss = _cross_entropy_to_own(embeddings[anchor] @ embeddings[positive].T)
    squares = embeddings[torch.cat([anchor, positive])].square().sum(1)
    return loss + l2_weight * squares.sum() / max(1, len(squares))


def multi_similarity(
    embeddings: Tensor, labels: Tensor, alpha: float, beta: float, base: float, epsilon: float
) -> Tensor:
    """Multi-similarity loss with its miner; sum over anchors divided by the batch size.

    Of an anchor's positives those with c − ε < the largest negative cosine count, of its negatives
    those with c + ε > the smallest positive one; each gives
    (1/α)·log(1 + Σ e^{−α(c−λ)}) + (1/β)·log(1 + Σ e^{β(c−λ)}). Anchors for which a side is empty
    are skipped, and so are positives with c ≥ 1 − 1e-5.
    """
    cosine, positive, negative = _cosines(embeddings, labels)
    known = cosine.detach()
    positive &= known < 1 - _SAME_IMAGE
    hardest_negative = known.masked_fill(~negative, -torch.inf).amax(1, keepdim=True)
    hardest_positive = known.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
    # Infinities make both masks empty where the other side is.
    pulled = positive & (known - epsilon < hardest_negative)
    pushed = negative & (known + epsilon > hardest_positive)
    pull = _log_one_plus_sum(-alpha * (cosine - base), pulled) / alpha
    push = _log_one_plus_sum(beta * (cosine - base), pushed) / beta
    return (pull + push).sum() / len(labels)


def nt_xent(embeddings: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Mean over positive pairs of −log(e^{c_ap/τ} / (e^{c_ap/τ} + Σ_negatives e^{c_an/τ})).

    With one positive for each anchor this is SimCLR's loss (Chen et al., ICML 2020).
    """
    cosine, positive, negative = _cosines(embeddings, labels)
    logits = cosine / temperature
    anchor, other = positive.nonzero(as_tuple=True)
    against = _log_sum(logits, negative)[anchor] - logits[anchor, other]
    return _log_one_plus(against).sum() / max(1, len(anchor))


def two_view_nt_xent(embeddings: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """NT-Xent between two augmented views of each image, whatever its class.

    The first N of the 2N rows are one view, the last N the other, in the same order.
    """
    images = torch.arange(len(labels) // 2, device=labels.device).repeat(2)
    return nt_xent(embeddings, images, temperature)


def lifted_structure(
    embeddings: Tensor, labels: Tensor, neg_margin: float, pos_margin: float
) -> Tensor:
    """Mean over positive pairs of ½·[log Σ e^{m_n − d} + d_ap − m_p]₊², Euclidean d.

    The sum is over the negatives of the anchor and those of the positive (Oh Song et al., CVPR
    2016).
    """
    unit = unit_vectors(embeddings)
    distance = _distances(unit)
    positive, negative = pair_masks(labels)
    anchor, other = positive.nonzero(as_tuple=True)
    push = _log_sum(neg_margin - distance, negative)
    both = torch.logaddexp(push[anchor], push[other])
    violation = (both + distance[anchor, other] - pos_margin).relu()
    return violation.square().sum() / (2 * max(1, len(anchor)))


def snr_contrastive(
    embeddings: Tensor,
    labels: Tensor,
    pos_margin: float,
    neg_margin: float,
    zero_mean_weight: float,
) -> Tensor:
    """Contrastive loss on d(a, b) = Var(a − b)/Var(a) (Yuan et al., CVPR 2019).

    [d_p − m_p]₊ and [m_n − d_n]₊, each averaged over its pairs that are not 0, and a factor times
    the mean of |Σ_d f̂_d|. Variances are over the coordinates of unit vectors.
    """
    unit = unit_vectors(embeddings)
    centered = unit - unit.mean(1, keepdim=True)
    products = centered @ centered.T
    power = products.diagonal()
    # Proportional to variances, in which the number of coordinates cancels.
    noise = (power[:, None] + power - 2 * products).clamp(min=0)
    distance = noise / power[:, None].clamp(min=SMALLEST_NORM**2)
    positive, negative = pair_masks(labels)
    pull = _mean_of_positive((distance - pos_margin)[positive])
    push = _mean_of_positive((neg_margin - distance)[negative])
    return pull + push + zero_mean_weight * unit.sum(1).abs().mean()


def tuplet_margin(embeddings: Tensor, labels: Tensor, scale: float, margin: float) -> Tensor:
    """Mean over positive pairs of log(1 + Σ_n e^{s(cos θ_an − cos(θ_ap − m))}), m in radians.

    Yu and Tao, *Deep Metric Learning with Tuplet Margin Loss* (ICCV 2019).
    """
    cosine, positive, negative = _cosines(embeddings, labels)
    anchor, other = positive.nonzero(as_tuple=True)
    slackened = (angles(cosine[anchor, other]) - margin).cos()
    against = _log_sum(scale * cosine, negative)[anchor] - scale * slackened
    return _log_one_plus(against).sum() / max(1, len(anchor))


def sparse_centers(centers: Tensor) -> Tensor:
    """SoftTriple's regulariser on centres ``(C, K, D)``: half the mean distance within a class.

    Distances are those of unit vectors (Qian et al., ICCV 2019). pytorch-metric-learning's form
    needs the memory of all C·K × C·K pairs, and its gradient is not a number once two centres have
    merged.
    """
    unit = unit_vectors(centers.flatten(0, 1)).view_as(centers)
    count = centers.shape[1]
    # Both orders of a pair are in the sum, and the diagonal is 0.
    return _distances(unit).sum() / (2 * len(centers) * count * (count - 1))


def pair_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return which pairs are positive (of one class, not a sample with itself) and negative."""
    same = labels[:, None] == labels
    return same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device), ~same


def first_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the first and second sample of each class that has two."""
    ordered, order = labels.sort(stable=True)
    changes = ordered[1:] != ordered[:-1]
    starts = torch.cat([changes.new_ones(1), changes])
    (first,) = (starts[:-1] & ~changes).nonzero(as_tuple=True)
    return order[first], order[first + 1]


def _cosines(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cosines of all pairs, ``(N, N)``, and which are positive and negative."""
    unit = unit_vectors(embeddings)
    return unit @ unit.T, *pair_masks(labels)


def _distances(vectors: Tensor) -> Tensor:
    """Return Euclidean distances between rows, with a gradient of 0 where they are 0."""
    # Not through inner products, which lose the small distances.
    return torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist")


def _mean_of_positive(values: Tensor) -> Tensor:
    return values.relu().sum() / (values > 0).sum().clamp(min=1)


def _cross_entropy_to_own(logits: Tensor) -> Tensor:
    target = torch.arange(len(logits), device=logits.device)
    return cross_entropy(logits, target, reduction="sum") / max(1, len(logits))


def _log_sum(logits: Tensor, kept: Tensor) -> Tensor:
    """Return log Σ e^z over the kept columns of each row, hugely negative where there are none."""
    # Finite, since the gradient through a row of infinities is not a number.
    return logits.masked_fill(~kept, torch.finfo(logits.dtype).min).logsumexp(1)


def _log_one_plus(exponent: Tensor) -> Tensor:
    """Return log(1 + e^x), exact for all x."""
    return torch.logaddexp(exponent, torch.zeros_like(exponent))


def _log_one_plus_sum(logits: Tensor, kept: Tensor) -> Tensor:
    return _log_one_plus(_log_sum(logits, kept))


class DistanceWeightedMiner(nn.Module):
    """Draw one negative for each positive pair, evenly over distances from the anchor.

    Wu et al., *Sampling Matters in Deep Embedding Learning* (ICCV 2017): the probability of a
    negative at distance d is proportional to 1/q(d), q(d) ∝ d^(D−2)·(1 − d²/4)^((D−3)/2) being the
    density of distances on the sphere. Anchors without a negative nearer than 1.4 are left out.

    Attributes:
        draws: buffer, int64: how many batches were mined, so that a resumed run draws on.
    """

    draws: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def forward(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return anchors, positives and negatives, positions in the batch ``(T,)``.

        Args:
            embeddings: raw embeddings, ``(N, D)``.
            labels: their classes, ``(N,)``.
        """
        weight = negative_weights(embeddings, labels)
        positive, _ = pair_masks(labels)
        anchor, other = (positive & (weight.sum(1, keepdim=True) > 0)).nonzero(as_tuple=True)
        if not len(anchor):
            return anchor, other, anchor
        # On the CPU, so that a seed gives the same draws on every device.
        state = np.random.SeedSequence([self.seed, int(self.draws)])
        generator = torch.Generator().manual_seed(int(state.generate_state(1, np.uint64)[0]))
        self.draws += 1
        drawn = torch.multinomial(weight[anchor].cpu(), 1, generator=generator)
        return anchor, other, drawn[:, 0].to(labels.device)


def negative_weights(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return the probability of each sample (column) as a negative of each anchor, ``(N, N)``.

    Rows sum to 1, or to 0 where no negative is near enough.
    """
    cosine, _, negative = _cosines(embeddings, labels)
    distance = (2 - 2 * cosine).clamp(min=_CUTOFF**2).sqrt()
    size = embeddings.shape[1]
    near = distance.clamp(max=_FARTHEST)
    log_inverse = (2 - size) * near.log() + (3 - size) / 2 * (1 - near.square() / 4).log()
    allowed = negative & (distance < _FARTHEST)
    # The softmax only scales each row to sum 1; densities themselves overflow at D = 512.
    return log_inverse.masked_fill(~allowed, -torch.inf).softmax(1).nan_to_num(0)
