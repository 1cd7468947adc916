"""Does SEC help whole networks? Small photos and short trainings, which two cores carry.

    facerec compare recipes/papers/sec_photos_small.py --data FOLDER --processes 2

The four losses of `sec.py`, plain, with SEC at the authors' weight and with SEC in the scale-free
form of the face recipes, train EfficientNet-Lite0 along from its ImageNet weights, batch norms
frozen, on the photos of Cars196 at 64 pixels. All arms share one rate and 600 steps, and nothing is
searched: two models a seed, about two minutes of a core each. `sec_photos.py` asks the same under
the Reality Check's protocol: days on a GPU.
"""

from dataclasses import replace

from facerec.heads import SEC
from facerec.recipes._arms import cars196, crops, fixed, four, lite0, paper, reality_check
from facerec.training import Adam

small_crops = replace(crops, resize=72, size=64, smallest=0.5, largest=1.0, uniform="area")

recipe = paper(
    "sec_photos_small",
    "Does SEC help the four losses of its paper where the network learns along?",
    fixed(four),
    ("SEC", SEC(weight=1.0)),
    ("SEC-scale-free", SEC(weight=0.2, scale_free=True)),
    data=cars196,
    protocol=replace(
        reality_check,
        trunk=lite0,
        transform=small_crops,
        optimizer=Adam(lr=1e-4),
        steps_per_epoch=100,
        epochs=6,
        patience=6,
        folds=2,
    ),
    trials=1,
    repetitions=9,
    paired=False,
)
