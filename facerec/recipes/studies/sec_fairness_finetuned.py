"""Does SEC change norms and error rates by group in models that start from a good network?

    facerec study recipes/studies/sec_fairness_finetuned.py --real.init runs/student \
        --real.records data/cfp_train --real.also data/celeba_train \
        --real.bench data/lfw/lfw.bin --real.attributes data/lfw/attributes.csv

Both arms over three seeds, each fine-tuned from the same weights as `recipes/finetune.py` does it.
A run takes some minutes with ten thousand photos on two CPU cores.
"""

from pathlib import Path

from facerec.fairness.study import FairnessStudy
from facerec.recipe import load_recipe
from facerec.training import Recipe

recipe = FairnessStudy(
    generated=None,
    real=load_recipe(Path(__file__).parents[1] / "finetune.py", Recipe),
    attribute="gender",
    seeds=(0, 1, 2),
)
