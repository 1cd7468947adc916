"""Does SEC help whole networks? Small photos and short trainings, which two cores carry.

    facerec compare recipes/papers/sec_photos_small.py --data FOLDER --processes 2

The four losses of `sec.py`, plain, with SEC at the authors' weight and with SEC in the scale-free
form of the face recipes, train EfficientNet-Lite0 along from its ImageNet weights, batch norms
frozen, on the photos of Cars196 at 64 pixels. All arms share one rate and 600 steps, and nothing is
searched: two models a seed, about two minutes of a core each. `sec_photos.py` asks the same under
the Reality Check's protocol: days on a GPU.
"""

from facerec.comparison import Arm, Comparison, CropTransform, ImageData, Protocol, Trunk
from facerec.comparison.transforms import Crop
from facerec.heads import SEC
from facerec.recipes.papers._protocols import WEIGHTS, reality_check, with_penalty
from facerec.recipes.papers.sec import authors, four
from facerec.training import Adam

protocol = Protocol(
    trunk=Trunk(
        "timm:tf_efficientnet_lite0",
        embedding_size=128,
        weights=WEIGHTS,
        freeze_bn=True,
        image_size=64,
    ),
    transform=CropTransform(
        resize=72, size=64, crop=Crop(0.5, 1.0, "area"), mean=(127.0,) * 3, std=(128.0,) * 3
    ),
    optimizer=Adam(lr=1e-4),
    batch=reality_check.batch,
    steps_per_epoch=100,
    epochs=6,
    patience=6,
    folds=2,
    numbering="mlrc",
)


def family(name: str) -> tuple[Arm, ...]:
    """Return a loss of the paper, and the same with SEC in both forms."""
    base = Arm(name, four[name], search=())
    scale_free = SEC(weight=0.2, scale_free=True)
    return (
        base,
        with_penalty(base, "SEC", authors["SEC"]),
        with_penalty(base, "SEC-scale-free", scale_free),
    )


recipe = Comparison(
    name="sec_photos_small",
    question="Does SEC help the four losses of its paper where the network learns along?",
    data=ImageData(WEIGHTS.parent / "CARS196"),
    protocol=protocol,
    arms=tuple(arm for name in four for arm in family(name)),
    trials=1,
    repetitions=9,
)
