"""A network of half the depth learns the embeddings of a published one, from 9,453 photos.

    facerec import-weights data/teacher/MobileFaceNet.onnx --backbone mobilefacenet \
        --embedding-size 128 --std 128 --out data/teacher/MobileFaceNet.safetensors
    facerec train recipes/distil_small.py

556 people are too few to learn faces from, by a margin or from a teacher alone: a network drawn
from a seed knows their pictures by heart and little of others (docs/results.md). So the student
begins with layers of its teacher, the first half of every group, as DistilBERT does (Sanh et al.,
2019), and learns to do without the rest. Each image is shown in eight fixed augmentations, half of
them blends of two faces, each with the teacher's embedding of the very same pixels, for a teacher
that looks at other pixels than its student teaches less (Beyer et al., "Knowledge distillation: A
good teacher is patient and consistent", CVPR 2022). The teacher's look at all of them takes a
quarter of an hour of one core, once; see docs/training.md.
"""

from pathlib import Path

from facerec.backbones import Backbone, Preprocessing
from facerec.records import Augmentation, Data, Part
from facerec.training import AdamW, Checkpoints, Cosine, Distillation, Finetune, Init, Recipe

recipe = Recipe(
    data=Data(
        path=Path("data/cfp_train"),
        also=(Part(path=Path("data/celeba_train")),),
        augmentation=Augmentation(
            flip=0.5, crop=0.2, low_resolution=0.2, blur=0.1, photometric=0.4, affine=0.5
        ),
    ),
    preprocessing=Preprocessing(mean=127.5, std=128.0),
    init=Init(path=Path("data/teacher/MobileFaceNet.safetensors"), strict=False),
    # The size of the teacher's embedding, so that no map stands between.
    backbone=Backbone(name="mobilefacenet_half", embedding_size=128, embedding_bn="affine"),
    margin=None,
    distillation=Distillation(
        teacher=Path("data/teacher/MobileFaceNet.onnx"),
        preprocessing=Preprocessing(mean=127.5, std=128.0),
        views=8,
        mixup=0.5,
    ),
    # The teacher's batch norms were folded into its convolutions and have no statistics to follow.
    finetune=Finetune(batch_norm="frozen"),
    optimizer=AdamW(lr=1e-3, weight_decay=0.05),
    schedule=Cosine(warmup_epochs=0.3),
    checkpoints=Checkpoints(every_steps=500, keep=2),
    batch_size=32,
    epochs=5,
    workers=1,
)
