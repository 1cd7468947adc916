"""SimCLR and SupCon with SEC and with the L2 penalty, on two views of every image.

    facerec compare recipes/papers/reviewers_views.py --features FILE --second-views FILE

The second file holds features of the same images seen otherwise: mirrored, or another crop. SimCLR
is told nothing of the classes: the other view is the only positive, and a batch has one image of
each of 32 classes. For SupCon it has four of each of 8, without which it would be SimCLR. The
penalty's weight grows linearly, as in the authors' code.
"""

from dataclasses import replace

from facerec.comparison import Arm, MetricLoss
from facerec.heads import SEC, L2Norm
from facerec.recipes._arms import classes_alone, features, paper, reality_check, weight

recipe = paper(
    "reviewers_views",
    "Does a penalty on norms help SimCLR and SupCon?",
    (
        Arm("SimCLR", MetricLoss("NTXent", views=2)),
        Arm("SupCon", MetricLoss("SupCon", views=2), protocol=reality_check),
    ),
    ("SEC", SEC(weight=0.1, schedule="linear"), weight),
    ("L2", L2Norm(weight=1e-4, schedule="linear"), weight),
    data=replace(features, second_views=features.path.with_name("second_views.npz")),
    protocol=classes_alone,
    declared=("batch",),
)
