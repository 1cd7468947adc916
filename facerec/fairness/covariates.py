"""Association of norms with a group when covariates are held fixed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc

from facerec.errors import MetricError
from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.norms import Array, SubjectBootstrap, SubjectNorms, estimate_of
from facerec.fairness.variance_shares import NO_INTERVAL, share_interval
from facerec.fairness.welch import Welch
from facerec.report.conclusions import ALPHA
from facerec.report.estimate import Estimate
from facerec.statistics.intervals import Interval


@dataclass(frozen=True)
class AdjustedAssociation:
    """Association of the norms of images with the group, covariates held fixed."""

    name: str
    """The attribute, or the intersection."""
    covariates: tuple[str, ...]
    """In the model, linearly."""
    images: int
    """With all covariates."""
    subjects: int
    """With such an image."""
    dropped: int
    """Images without some covariate."""
    eta2: Estimate
    """η² over these images before adjustment."""
    partial_eta2: Estimate
    """Share of the variance that the covariates leave which the group explains."""
    wald_f: float | None
    """Wald statistic with subject-clustered errors, Welch's F if there were no covariates; None
    if these errors have no inverse."""
    df: tuple[float, float]
    """Its degrees of freedom, k − 1 and Welch's."""
    p: float | None
    """Of the Wald test; the interval of partial η² holds 0 where this is at least 1 − confidence,
    and nowhere else."""


def adjust_for_covariates(
    sample: SubjectNorms, bootstrap: SubjectBootstrap
) -> AdjustedAssociation | NoComparison:
    """Fit ``norm ~ group + covariates`` to images, with errors clustered by subject.

    The Wald test uses a sandwich of sums by subject (Cameron and Miller, Journal of Human Resources
    50, 2015) with corrections for groups of few subjects, different spread and uneven numbers of
    images (Welch; Bell and McCaffrey, Survey Methodology 28, 2002); with as many images
    of every subject and no covariate it is Welch's test. Everything is computed from sums of
    products over the images of each subject.

    Args:
        sample: the norms, with covariates.
        bootstrap: of its groups.

    Raises:
        MetricError: no covariate, one that does not vary, or several that follow from another.
    """
    names = tuple(sample.covariates)
    if not names:
        raise MetricError(f"{sample.name}: there are no covariates to adjust for")
    columns = np.stack(list(sample.covariates.values()), axis=1)
    complete = np.asarray(np.isfinite(columns).all(axis=1))
    present = np.unique(sample.subjects[complete])
    held = np.bincount(sample.groups[present], minlength=len(sample.names))
    if len(held) < 2:
        return NoComparison(sample.name, "all subjects are in one group")
    if not held.all():
        lacking = sample.names[int(held.argmin())]
        return NoComparison(sample.name, f"no image of group {lacking} has all covariates")
    fit = _Fit(sample, complete, columns[complete])
    if len(present) <= len(held) or fit.error <= 1e-20 * fit.total:
        return NoComparison(sample.name, "there is nothing left to estimate errors from")
    plain, adjusted = fit.intervals(bootstrap)
    wald = fit.wald()
    subjects = len(present)
    return AdjustedAssociation(
        name=sample.name,
        covariates=names,
        images=fit.images,
        subjects=subjects,
        dropped=len(complete) - fit.images,
        eta2=estimate_of(fit.eta2, plain, subjects, NO_INTERVAL),
        partial_eta2=estimate_of(fit.partial_eta2, adjusted, subjects, NO_INTERVAL),
        wald_f=None if wald is None else wald.f,
        df=(len(held) - 1, float(subjects - 1 if wald is None else wald.within)),
        p=None if wald is None else wald.p,
    )


class _Fit:
    """Least squares of norms on groups and covariates, from sums of products by subject."""

    def __init__(self, sample: SubjectNorms, complete: NDArray[np.bool_], columns: Array) -> None:
        """Fit images with all covariates.

        Args:
            sample: the norms.
            complete: which images, ``(N,)``.
            columns: their covariates, ``(n, q)``.

        Raises:
            MetricError: a covariate does not vary within groups, or follows from others.
        """
        norms = sample.norms[complete]
        spread = columns.std(axis=0)
        scaled = (columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1)
        self.groups = sample.groups
        self.subjects = sample.subjects[complete]
        self.images = len(norms)
        self.vectors = np.column_stack([np.ones(len(norms)), norms - norms.mean(), scaled])
        width = self.vectors.shape[1]
        self.products = np.empty((len(sample.groups), width, width))
        """Sums of products of 1, norm and covariates over the images of a subject, (G, d, d)."""
        for i, j in itertools.combinations_with_replacement(range(width), 2):
            terms = self.vectors[:, i] * self.vectors[:, j]
            sums = np.bincount(self.subjects, weights=terms, minlength=len(sample.groups))
            self.products[:, i, j] = self.products[:, j, i] = sums
        self.by_group = np.zeros((len(sample.names), width, width))
        np.add.at(self.by_group, sample.groups, self.products)
        within = _within(self.by_group)[1:, 1:]
        if np.linalg.eigvalsh(within)[0] <= 1e-10 * self.images:
            raise MetricError(
                f"{sample.name}: the covariates {', '.join(sample.covariates)} do not all vary "
                "within groups, or one follows from the others; leave it out"
            )
        self.intercepts, self.slopes, self.error = _regress(self.by_group)
        self.reduced = _regress(self.by_group.sum(axis=0)[None])[2]
        self.unadjusted = _regress(self.by_group[:, :2, :2])[2]
        self.total = _regress(self.by_group.sum(axis=0)[None, :2, :2])[2]

    @property
    def eta2(self) -> float:
        """Share of the variance between groups, without covariates."""
        return float(1 - self.unadjusted / self.total)

    @property
    def partial_eta2(self) -> float:
        """Share of what covariates leave."""
        return float(1 - self.error / self.reduced)

    def intervals(self, bootstrap: SubjectBootstrap) -> tuple[Interval | None, Interval | None]:
        """Return the intervals of `eta2` and `partial_eta2`."""
        flat = self.products.reshape(len(self.products), -1)
        drawn = [bootstrap.sums(g, flat[ids]) for g, ids in enumerate(bootstrap.members)]
        shape = (bootstrap.replicates, len(drawn), *self.products.shape[1:])
        moments = np.stack(drawn, axis=1).reshape(shape)
        return (
            self._interval(moments[..., :2, :2]),
            self._interval(moments),
        )

    def _interval(self, moments: Array) -> Interval | None:
        width = moments.shape[-1]
        observed = self.by_group[:, :width, :width]
        effects, slopes, error = _regress(observed)
        with np.errstate(divide="ignore", invalid="ignore"):
            replicated, _, errors = _regress(moments)
        wald = self._wald(width)
        sizes = self._sizes()
        if wald is None or sizes.min() < 2:
            return None
        # Group and covariates overlap; K is what covariates do not explain of the groups.
        shared = np.delete(observed[:, 0], 1, axis=1)
        total = np.delete(np.delete(observed.sum(axis=0), 1, axis=0), 1, axis=1)
        contrasts = np.diag(observed[:, 0, 0]) - shared @ np.linalg.solve(total, shared.T)
        spare = (self.images - len(effects) - len(slopes)) / self.images
        both, found = (float(error), errors), wald.p < ALPHA
        return share_interval(
            effects, replicated - effects, contrasts, both, sizes, spare, detected=found
        )

    def wald(self) -> _Wald | None:
        """Test equal intercepts; None if their errors have no inverse."""
        return self._wald(self.vectors.shape[1])

    def _sizes(self) -> Array:
        """Return the numbers of subjects in the groups, ``(k,)``."""
        return np.bincount(self.groups[np.unique(self.subjects)]).astype(np.float64)

    def _wald(self, width: int) -> _Wald | None:
        """Test equal intercepts given the first ``width`` − 2 covariates.

        The squared sum of a subject is divided by 1 − its share of the images of its group, as in
        `clustered_mean`, and the degrees of freedom are Welch's from the effective numbers of
        subjects of the groups, whose errors may differ.
        """
        moments = self.by_group[:, :width, :width]
        intercepts, slopes, _ = _regress(moments)
        k, q, sizes = len(intercepts), len(slopes), self._sizes()
        images = np.bincount(self.subjects, minlength=len(self.groups)).astype(np.float64)
        shares = images / moments[self.groups, 0, 0]
        covariates = self.vectors[:, 2:width]
        residuals = (
            self.vectors[:, 1] - intercepts[self.groups[self.subjects]] - covariates @ slopes
        )
        sums = [
            np.bincount(self.subjects, weights=column, minlength=len(self.groups))
            for column in (residuals, *(residuals[:, None] * covariates).T)
        ]
        scores = np.zeros((len(self.groups), k + q))
        scores[np.arange(len(scores)), self.groups] = sums[0]
        scores[:, k:] = np.stack(sums, axis=1)[:, 1:]
        scores /= np.sqrt(np.where(shares < 1, 1 - shares, 1))[:, None]
        products = np.zeros((k + q, k + q))
        products[:k, :k] = np.diag(moments[:, 0, 0])
        products[:k, k:] = moments[:, 0, 2:]
        products[k:, :k] = products[:k, k:].T
        products[k:, k:] = moments[:, 2:, 2:].sum(axis=0)
        bread = np.linalg.inv(products)
        correction = (self.images - k) / (self.images - k - q)
        covariance = correction * (bread @ (scores.T @ scores) @ bread)[:k, :k]
        differences = np.column_stack([-np.ones(k - 1), np.eye(k - 1)])
        spread, variances = differences @ covariance @ differences.T, covariance.diagonal()
        if np.linalg.matrix_rank(spread, hermitian=True) < k - 1 or variances.min() <= 0:
            return None
        squares, fourths = (np.bincount(self.groups, shares**power) for power in (2, 4))
        freedom = np.maximum(1, squares**2 / fourths * (sizes - 1) / sizes)
        test = Welch.of_weights(1 / variances, freedom)
        precision = differences.T @ np.linalg.solve(spread, differences) / float(test.scale)
        f, within = float(intercepts @ precision @ intercepts), float(test.within)
        return _Wald(f, within, precision, float(fdtrc(k - 1, within, f)))


@dataclass(frozen=True)
class _Wald:
    """A test of equal intercepts."""

    f: float
    within: float
    """Degrees of freedom of the error."""
    precision: Array
    """P with f = intercepts' P intercepts, ``(k, k)``."""
    p: float


def _within(moments: Array) -> Array:
    """Return sums of products about the means of groups, ``(…, k, d, d)`` → ``(…, d−1, d−1)``."""
    images, sums = moments[..., :1, :1], moments[..., 1:, :1]
    return (moments[..., 1:, 1:] - sums * np.swapaxes(sums, -1, -2) / images).sum(axis=-3)


def _regress(moments: Array) -> tuple[Array, Array, Array]:
    """Regress norms on covariates with an intercept for each group.

    Args:
        moments: sums of products of 1, norm and q covariates, ``(…, k, q + 2, q + 2)``.

    Returns:
        Intercepts ``(…, k)``, slopes ``(…, q)`` and the sum of squared errors ``(…)``.
    """
    within = _within(moments)
    slopes = np.einsum(
        "...ij,...j->...i", np.linalg.pinv(within[..., 1:, 1:], hermitian=True), within[..., 1:, 0]
    )
    error = within[..., 0, 0] - np.einsum("...i,...i->...", slopes, within[..., 1:, 0])
    sums = moments[..., 0, 1] - np.einsum("...ki,...i->...k", moments[..., 0, 2:], slopes)
    return sums / moments[..., 0, 0], slopes, np.maximum(error, 0)
