"""Run a comparison: search every arm, train the best settings anew, score them once.

All state lies in one folder, in trials and result files that are whole or not there; the same
command goes on after any interruption, and may run several times at once, on machines that share
the folder.
"""

from __future__ import annotations

import fcntl
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from facerec.base.errors import ComparisonError, fault
from facerec.base.files import check_no_links, open_file, parse_json, read_file, sha256, write_json
from facerec.base.libraries import Library
from facerec.base.progress import Progress
from facerec.base.recipe import differences, digest, to_dict
from facerec.comparison.batches import derived_seed
from facerec.comparison.features import FeatureData, open_features
from facerec.comparison.finals import (
    FinalRun,
    read_final,
    score_models,
    scored_positions,
    write_final,
)
from facerec.comparison.fit import ArmTrainer, Fit
from facerec.comparison.image_sets import ImageData, ImageSet, open_image_set
from facerec.comparison.losses import LossModule
from facerec.comparison.own_losses import check_first_step
from facerec.comparison.protocol import UNTRAINED, Arm, Comparison, Protocol
from facerec.comparison.retrieval import clustering
from facerec.comparison.search import Search, Trial, best_of, optuna
from facerec.comparison.trunks import read_recipe
from facerec.records.synthetic import SyntheticSet, write_synthetic
from facerec.report.documents import provenance_of

_PACKAGES = ("numpy", "torch", "optuna", "pytorch-metric-learning", "timm")
"""Packages whose versions are noted, where they are installed."""

_KEPT = ("comparison", "data", "weights_sha256", "own_losses_sha256")
"""What a folder keeps to, of its manifest."""

_WAIT = 1.0
"""Seconds between two looks at what other workers do."""


@dataclass(frozen=True, eq=False)
class ArmResult:
    """Everything known of an arm."""

    arm: Arm
    trials: tuple[Trial, ...]
    runs: Mapping[int, FinalRun]
    """Final runs by the number of their seed; none if no trial succeeded."""
    failures: tuple[str, ...]
    """Why final runs could not be trained, with their seed."""

    @property
    def best(self) -> Trial | None:
        """The trial that was trained anew; None if all failed."""
        return best_of(self.trials)


@dataclass(frozen=True, eq=False)
class Results:
    """What a comparison found."""

    comparison: Comparison
    manifest: dict[str, Any]
    arms: tuple[ArmResult, ...]
    untrained: Mapping[int, FinalRun]
    """Models with drawn weights, by seed; of a comparison on features these themselves, once."""


@contextmanager
def held(path: Path, wait: bool = False) -> Iterator[bool]:
    """Hold a lock for a block, and tell whether it is held; it ends with its process.

    Several processes, on one machine or several with a common folder, share the work of a
    comparison: what a killed one had begun is taken over at once.

    Args:
        path: the lock's file, which stays.
        wait: until others let it go.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_file(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


class Harness:
    """One worker of a comparison.

    Args:
        comparison: what to compare.
        folder: of all state and results.
        device: where to compute.
        storage: URL of an Optuna storage; a SQLite file in the folder by default.
        faces: called while faces are drawn.
    """

    def __init__(
        self,
        comparison: Comparison,
        folder: Path,
        device: torch.device,
        storage: str | None = None,
        faces: Progress | None = None,
    ) -> None:
        """Check everything that can be checked before work begins.

        Raises:
            FacerecError: the arms are not comparable, the images cannot be used, or the folder
                belongs to another comparison.
        """
        comparison.check()
        Library.require(optuna)
        if comparison.metrics:
            clustering(np.eye(2), [0, 1], seed=0)  # what that needs may not be installed
        self.comparison, self.folder, self.device = comparison, folder, device
        self.on_features = isinstance(comparison.data, FeatureData)
        # Features as they are need no seed.
        self._untrained = 1 if self.on_features else comparison.repetitions
        self.images = self._open_images(faces)
        common = comparison.protocol
        self.split = self.images.split(common.folds, common.numbering)
        self.trainer = ArmTrainer(self.images, device)
        self._check_models()
        self._notes = [*self.images.notes, *self._check_weights()]
        check_no_links(folder)  # it may be another's
        with held(folder / "locks" / "turn", wait=True):
            self.manifest = self._write_manifest()
            self.search = Search(comparison, self.manifest["data"], folder, storage)

    def run(self, progress: Progress | None = None) -> Results:
        """Work until nothing is left to do for anybody, and return what all workers found.

        Args:
            progress: called with each arm and how many of its trials and final runs are done.
        """
        told: dict[str, tuple[int, int]] = {}
        with self.search.explained():
            while True:
                counts = {_name(arm): self._count(arm) for arm in (None, *self.comparison.arms)}
                for name, count in counts.items():
                    if progress is not None and told.get(name) != count:
                        progress(name, *count)
                told = counts
                if all(done >= wanted for done, wanted in counts.values()):
                    return self.results()
                if not any(map(self._work, (None, *self.comparison.arms))):
                    time.sleep(_WAIT)

    def _count(self, arm: Arm | None) -> tuple[int, int]:
        """Return how many trials and final runs of an arm all workers have done, and of how many.

        None is the untrained network.
        """
        paths = self._paths(arm).values()
        done = sum(path.is_file() for path in paths)
        if arm is None:
            return done, len(paths)
        return done + len(self.search.finished(arm)), len(paths) + self.search.budget(arm)

    def _paths(self, arm: Arm | None) -> dict[int, Path]:
        """Return where the final runs lie, by seed; none where all trials failed."""
        seeds = self._untrained if arm is None else self.comparison.repetitions
        stem = "seed"
        if arm is not None:
            best = self.search.best(arm)
            seeds = 0 if best is None and self.search.is_done(arm) else seeds
            stem = stem if best is None else f"trial-{best.number}-seed"
        return {
            seed: self.folder / "finals" / _name(arm) / f"{stem}-{seed}.npz"
            for seed in range(seeds)
        }

    def results(self) -> Results:
        """Gather what was found; a comparison must be done for this."""
        arms = []
        for arm in self.comparison.arms:
            read = self._finals(arm)
            runs = {seed: run for seed, run in read.items() if not run.failure}
            failures = [f"seed {seed}: {r.failure}" for seed, r in read.items() if r.failure]
            arms.append(ArmResult(arm, self.search.trials(arm), runs, tuple(failures)))
        untrained = self._finals(None)
        return Results(self.comparison, self.manifest, tuple(arms), untrained)

    def _finals(self, arm: Arm | None) -> dict[int, FinalRun]:
        return {seed: read_final(path) for seed, path in self._paths(arm).items()}

    # ---------------------------------------------------------------- units of work

    def _work(self, arm: Arm | None) -> bool:
        """Run a trial of an arm, or train and score a seed of it, if one is left that nobody does.

        None is the untrained network.
        """
        locks = self.folder / "locks"
        if arm and not self.search.is_done(arm):
            base = self.comparison.begun_by(arm)
            if base and not self.search.is_done(base):
                return False
            # What is proposed depends on the trials that have ended: an arm is searched by one
            # worker, and the table does not depend on how many there are.
            with held(locks / "search" / arm.name) as mine:
                if mine and not self.search.is_done(arm):
                    self.search.work(arm, partial(self._fit_trial, arm))
                return mine
        for seed, path in self._paths(arm).items():
            with held(locks / "finals" / f"{_name(arm)}-{seed}") as mine:
                if mine and not path.is_file():
                    self._score(path, arm, seed)
                    return True
        return False

    def _fit_trial(self, arm: Arm, tried: Arm, first: int) -> Iterator[Fit]:
        """Train a setting on the folds from a number on, each as it is asked for."""
        protocol, seed = self.comparison.protocol_of(arm), self._seed(0)
        return (
            self.trainer.fit(tried, protocol, fold, seed)[0] for fold in self.split.folds[first:]
        )

    def _score(self, path: Path, arm: Arm | None, seed: int) -> None:
        """Train a seed's models, or none, and write how they score on the test classes."""
        asked, drawn = self.comparison, self._seed(1, seed)
        protocol = asked.protocol if arm is None else asked.protocol_of(arm)
        fits: list[Fit] = []
        best = None if arm is None else self.search.best(arm)
        if arm and best:
            tuned = arm.at(best.setting)
            trained = [self.trainer.fit(tuned, protocol, f, drawn) for f in self.split.folds]
            fits, models = [fit for fit, _ in trained], [model for _, model in trained]
        elif self.on_features:
            models = [nn.Identity()]
        else:
            models = [self.trainer.create_trunk(protocol, drawn)]
        sides = scored_positions(self.images, self.split)
        run = score_models(
            self.trainer, protocol, models, sides, fits, asked.metrics, asked.recalls
        )
        write_final(path, run)

    def _seed(self, *key: int) -> int:
        """Return the seed of trials (0) or of a final run (1, k): the same for all arms."""
        return derived_seed(self.comparison.seed, *key)

    # ---------------------------------------------------------------- data and manifest

    def _open_images(self, progress: Progress | None) -> ImageSet:
        data = self.comparison.data
        if isinstance(data, FeatureData):
            return open_features(data)
        if isinstance(data, SyntheticSet):
            folder = self.folder / "faces"
            with held(self.folder / "locks" / "turn", wait=True):
                if not (folder / "train.rec").is_file():  # which comes last
                    write_synthetic(folder, data, 2, progress)
            data = ImageData(folder)
        return open_image_set(data)

    def _check_models(self) -> None:
        """Build what will be trained once, as a folder keeps to the comparison it began with."""
        for protocol in self._protocols:
            self.trainer.create_trunk(protocol, seed=0)
        for arm in self.comparison.arms:
            protocol = self.comparison.protocol_of(arm)
            loss = LossModule(
                arm.loss, protocol.batch.classes, protocol.trunk.embedding_size, seed=0
            )
            if arm.loss.entry.sha256:
                check_first_step(loss, protocol.batch.per_class)

    @property
    def _protocols(self) -> set[Protocol]:
        return {self.comparison.protocol_of(arm) for arm in self.comparison.arms}

    @property
    def _weights(self) -> list[Path]:
        """The files that trunks begin with."""
        return sorted({each.trunk.weights for each in self._protocols if each.trunk.weights})

    def _check_weights(self) -> list[str]:
        """Refuse weights that were trained on these images; say where that is unknown."""
        notes = []
        for path in self._weights:
            trained_on = read_recipe(path).get("data", {}).get("path")
            if trained_on is not None and Path(trained_on).resolve() == self.images.path.resolve():
                raise ComparisonError(
                    f"{path}: these weights were trained on {trained_on}, test classes among them; "
                    "take other images or other weights"
                )
            notes.append(f"{path}: whether it was trained on test identities is not known")
        return notes

    def _write_manifest(self) -> dict[str, Any]:
        """Write what the folder holds, or return what it began with, which must be the same."""
        comparison = to_dict(self.comparison)
        # By their names, so that differences say whose they are.
        comparison["arms"] = {arm["name"]: arm for arm in comparison["arms"]}
        installed = [name for name in _PACKAGES if find_spec(name.replace("-", "_"))]
        own = {arm.loss.kind: arm.loss.entry.sha256 for arm in self.comparison.arms}
        manifest = {
            "schema": "facerec.comparison/1",
            "comparison": comparison,
            "comparison_sha256": digest(comparison),
            "data": self.images.fingerprint(),
            "notes": self._notes,
            "seeds": {
                "trials": self._seed(0),
                "final_runs": [self._seed(1, k) for k in range(self.comparison.repetitions)],
            },
            "weights_sha256": {str(path): sha256(path) for path in self._weights},
            "own_losses_sha256": {name: code for name, code in own.items() if code},
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "device": str(self.device),
            "versions": provenance_of(None, installed),
        }
        path = self.folder / "manifest.json"
        if not path.is_file():
            write_json(path, manifest)
            return manifest
        try:
            begun = parse_json(read_file(path))
            kept, asked = ({name: each[name] for name in _KEPT} for each in (begun, manifest))
            changed = differences(kept, asked)
        except (OSError, ValueError, LookupError, TypeError) as error:
            changed = [f"form ({fault(error)})"]
        if changed:
            raise ComparisonError(
                f"{path}: what this folder holds was begun with another {', '.join(changed)}; take "
                "the change back, or choose another folder with --out"
            )
        return begun


def _name(arm: Arm | None) -> str:
    return UNTRAINED if arm is None else arm.name
