"""SimCLR and SupCon with SEC and with the L2 penalty, on two views of every image.

    facerec compare recipes/papers/reviewers_views.py --features FILE --second-views FILE

The second file holds features of the same images seen otherwise: mirrored, or another crop. SimCLR
is told nothing of the classes: the other view is the only positive, and a batch has one image of
each of 32 classes. For SupCon it has four of each of 8, without which it would be SimCLR. The
penalty's weight grows linearly, as in the authors' code.
"""

from dataclasses import replace

from facerec.comparison import Arm, Comparison, MetricLoss
from facerec.heads import SEC, L2Norm
from facerec.recipes.papers._protocols import (
    classes_alone,
    features,
    reality_check,
    weight,
    with_penalty,
)

contestants = (
    Arm("SimCLR", MetricLoss("NTXent", views=2)),
    Arm("SupCon", MetricLoss("SupCon", views=2), protocol=reality_check),
)

recipe = Comparison(
    name="reviewers_views",
    question="Does a penalty on norms help SimCLR and SupCon?",
    data=replace(features, second_views=features.path.with_name("second_views.npz")),
    protocol=classes_alone(reality_check),
    declared=("batch",),
    arms=tuple(
        arm
        for base in contestants
        for arm in (
            base,
            with_penalty(base, "SEC", SEC(weight=0.1, schedule="linear"), weight),
            with_penalty(base, "L2", L2Norm(weight=1e-4, schedule="linear"), weight),
        )
    ),
    paired=True,
    trials=50,
    repetitions=10,
)
