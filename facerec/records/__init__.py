"""Records, image folders, WebDataset shards, verification packs: bytes to images and labels."""

from typing import TYPE_CHECKING

from facerec.base.lazy import lazy_names

if TYPE_CHECKING:
    from facerec.records.augment import Augmentation
    from facerec.records.dataset import Batch, BatchLoader, BatchRequest, FaceDataset, Source
    from facerec.records.decode import decode_image, image_size
    from facerec.records.images import ImageSource, SubjectFolders
    from facerec.records.layout import RecordImages, write_image_records
    from facerec.records.make import export_folder, make_records
    from facerec.records.packs import Pack, read_pack, write_pack
    from facerec.records.recordio import RecordFile
    from facerec.records.tar_shards import TarImages
    from facerec.records.training_set import Data, Part, open_dataset
else:
    __getattr__, __all__ = lazy_names(__name__)
