"""Search for each arm's best setting with Optuna, resumable after any interruption.

A trial is one setting, trained on every fold; its value is the mean validation score. Folds are
stored one by one, and the proposals depend on the seed, the trial's number and the trials before,
so that a search that was killed goes on exactly where it was. An arm is searched by one worker at a
time, and so the trials do not depend on how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain, count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from facerec.base.errors import ComparisonError
from facerec.base.files import open_regular, reading
from facerec.base.libraries import Library
from facerec.base.recipe import digest, to_dict
from facerec.comparison.batches import derived_seed
from facerec.comparison.fit import Fit
from facerec.comparison.protocol import WEIGHT, Arm, Comparison, Range, shared_ranges

if TYPE_CHECKING:
    import optuna
else:
    optuna = Library("optuna", "'facerec[compare]'")

FitFolds = Callable[[Arm, int], Iterator[Fit]]
"""Trains an arm, its setting written into it, on the folds from a number on, one by one."""


@dataclass(frozen=True)
class Trial:
    """A tried setting."""

    number: int
    setting: Mapping[str, float]
    score: float | None
    """Mean validation MAP@R; None if it failed."""
    folds: tuple[float | None, ...]
    """Validation MAP@R of each fold that was trained."""
    seconds: float
    failure: str | None


def best_of(trials: Iterable[Trial]) -> Trial | None:
    """Return the first trial with the highest validation score; None if all failed."""
    scored = (trial for trial in trials if trial.score is not None)
    return max(scored, key=lambda trial: (trial.score, -trial.number), default=None)


class Search:
    """All arms' trials in one storage.

    Args:
        comparison: what is compared.
        data: fingerprint of the images.
        folder: of the comparison; holds the storage unless ``url`` names another.
        url: of an Optuna storage: a database, or ``journal:PATH`` for folders on a network.
    """

    def __init__(
        self, comparison: Comparison, data: dict[str, Any], folder: Path, url: str | None = None
    ) -> None:
        self.comparison = comparison
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._where = where = url or f"sqlite:///{folder / 'trials.db'}"
        # Another comparison of this name in the same storage has other trials.
        own = digest([to_dict(comparison), data])[:16]
        with self.explained(OSError, RuntimeError):
            if url is None:  # SQLite would follow a link
                os.close(open_regular(folder / "trials.db", os.O_RDWR | os.O_CREAT))
            storage = _open(where)
            self._studies: dict[str, optuna.Study] = {
                arm.name: optuna.create_study(
                    study_name=f"{comparison.name}/{arm.name}/{own}",
                    storage=storage,
                    direction="maximize",
                    load_if_exists=True,
                )
                for arm in comparison.arms
            }

    def explained(self, *others: type[Exception]) -> AbstractContextManager[None]:
        """Word what a storage that cannot be used, or is lost, raises; ``others`` too."""
        from sqlalchemy.exc import SQLAlchemyError

        kinds = optuna.exceptions.OptunaError, SQLAlchemyError, *others
        what = f"{self._where}: the storage of trials"
        advice = "check the path and its rights, or choose another with --storage"
        return reading(what, ComparisonError, advice, kinds, "used")

    # ---------------------------------------------------------------- what lies there

    def finished(self, arm: Arm) -> list[optuna.trial.FrozenTrial]:
        """Return the trials that ended, those that failed among them, in order."""
        ended = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.FAIL)
        return self._studies[arm.name].get_trials(deepcopy=False, states=ended)

    def budget(self, arm: Arm) -> int:
        """Return how many trials the arm gets: one where there is nothing to search."""
        return self.comparison.trials if arm.ranges else 1

    def is_done(self, arm: Arm) -> bool:
        """Tell whether all trials of an arm have ended."""
        return len(self.finished(arm)) >= self.budget(arm)

    def best(self, arm: Arm) -> Trial | None:
        """Return the trial that `best_of` chooses."""
        return best_of(self.trials(arm))

    def trials(self, arm: Arm) -> tuple[Trial, ...]:
        """Return the trials that ended, in order, for whoever knows nothing of storages."""
        found = []
        for trial in self.finished(arm):
            setting = {r.field: r.value(trial.params[r.field]) for r in arm.ranges}
            fits = _stored_fits(trial)
            scores = tuple(fit["score"] for fit in fits)
            seconds = sum(fit["seconds"] for fit in fits)
            failure = trial.user_attrs.get("failure")
            found.append(Trial(trial.number, setting, trial.value, scores, seconds, failure))
        return tuple(found)

    # ---------------------------------------------------------------- work

    def work(self, arm: Arm, fit: FitFolds) -> None:
        """Run the next trial of an arm that this worker has claimed, or end one that was begun."""
        trial = self._next(arm)
        setting = {r.field: r.value(_suggest(trial, r)) for r in arm.ranges}
        stored, scores = _stored_fits(trial), []
        trained = map(to_dict, fit(arm.at(setting), len(stored)))
        for fold, result in enumerate(chain(stored, trained)):
            if fold >= len(stored):
                trial.set_user_attr(f"fold {fold}", result)
            if result["score"] is None:
                trial.set_user_attr("failure", f"fold {fold}: {result['failure']}")
                self._studies[arm.name].tell(trial, state=optuna.trial.TrialState.FAIL)
                return
            scores.append(result["score"])
        self._studies[arm.name].tell(trial, float(np.mean(scores)))

    def _next(self, arm: Arm) -> optuna.Trial:
        study, states = self._studies[arm.name], optuna.trial.TrialState
        self._enqueue(arm, study)
        trials = study.get_trials(deepcopy=False)
        open_ = (states.RUNNING, states.WAITING)
        first = next((trial for trial in trials if trial.state in open_), None)
        number = len(trials) if first is None else first.number
        # A sampler of its own for each trial, or a resumed search would propose others; the same
        # in all arms, so that none is luckier by it.
        study.sampler = optuna.samplers.TPESampler(
            seed=derived_seed(self.comparison.seed, 2, number),
            n_startup_trials=min(10, max(1, self.comparison.trials // 3)),
            multivariate=True,
            constant_liar=True,
        )
        if first is not None and first.state == states.RUNNING:  # of a worker that was killed
            return optuna.Trial(study, first._trial_id)
        return study.ask()

    def _enqueue(self, arm: Arm, study: optuna.Study) -> None:
        """Line up the first settings of an arm, once."""
        if arm.ranges and not study.user_attrs.get("enqueued"):
            paired = self.comparison.paired_with(arm) is not None
            for given in self._first_positions(arm):
                # Equal settings of a pair are tried again: each trial has its counterpart.
                study.enqueue_trial(given, skip_if_exists=not paired)
            study.set_user_attr("enqueued", True)

    def _first_positions(self, arm: Arm) -> Iterator[dict[str, float]]:
        """Yield what an arm tries before the search proposes anything, or what is left to it.

        A paired arm tries the settings of the other. Elsewhere these are its own defaults, and one
        more: for an arm that is compared with one of the same loss, that one's best setting with a
        penalty of weight 0, so that it contains the other arm; else the published best setting of
        the loss, or the middle of all ranges.
        """

        def positions(setting: Mapping[str, float]) -> dict[str, float]:
            known = [r for r in arm.ranges if r.field in setting]
            clipped = {r: float(np.clip(setting[r.field], r.low, r.high)) for r in known}
            return {r.field: r.position(value) for r, value in clipped.items()}

        defaults, base = arm.defaults, self.comparison.begun_by(arm)
        if base and base == self.comparison.paired_with(arm):
            shared = {r.field for r in shared_ranges(arm, base)}
            own = positions({name: defaults[name] for name in defaults.keys() - shared})
            for trial in self.finished(base):
                given = {name: trial.params[name] for name in shared}
                yield given if trial.number else given | own
            return
        yield positions(defaults)
        if base:
            best = self.best(base)
            second = {**best.setting, WEIGHT: 0.0} if best else defaults
        else:
            second = {f"loss.{k}": v for k, v in arm.loss.published.items()}
            if arm.loss.entry.best_lr is not None:
                second["loss_lr"] = arm.loss.entry.best_lr
            if not second.keys() & defaults.keys():
                second = {r.field: r.middle for r in arm.ranges}
        yield positions({**defaults, **second})


def _open(url: str) -> Any:
    """Return the storage of a URL."""
    if url.startswith("journal:"):
        from optuna.storages.journal import JournalFileBackend

        return optuna.storages.JournalStorage(JournalFileBackend(url.removeprefix("journal:")))
    patience = {"connect_args": {"timeout": 100}} if url.startswith("sqlite") else {}
    return optuna.storages.RDBStorage(url, engine_kwargs=patience)


def _stored_fits(trial: optuna.Trial | optuna.trial.FrozenTrial) -> list[dict[str, Any]]:
    """Return a trial's folds so far, as JSON types."""
    attributes = trial.user_attrs
    names = takewhile(attributes.__contains__, (f"fold {fold}" for fold in count()))
    return [attributes[name] for name in names]


def _suggest(trial: optuna.Trial, limits: Range) -> float:
    if limits.scale == "log_with_zero":
        return trial.suggest_float(limits.field, 0.0, 1.0)
    log = limits.scale == "log"
    if limits.integer:
        return trial.suggest_int(limits.field, int(limits.low), int(limits.high), log=log)
    return trial.suggest_float(limits.field, limits.low, limits.high, log=log)
