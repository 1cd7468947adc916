from __future__ import annotations

import pytest
import torch
from helpers.tiny_comparison import write_images

from facerec.comparison import ImageData
from facerec.comparison.fit import ArmTrainer
from facerec.comparison.image_sets import open_image_set


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> ArmTrainer:
    """What trains arms on small images."""
    folder = write_images(tmp_path_factory.mktemp("images"))
    return ArmTrainer(open_image_set(ImageData(folder)), torch.device("cpu"))
