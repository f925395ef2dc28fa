"""Image sets, tables and labelled pairs; readers of the standard formats; sets that ship with
packages.
"""

from __future__ import annotations

from blindsight.data.annotations import (
    VOC_CLASSES,
    load_celeba,
    load_coco,
    load_label_list,
    load_nuswide,
    load_voc,
)
from blindsight.data.arrays import load_arrays, load_cifar, load_idx, read_idx, write_idx
from blindsight.data.catalogue import (
    CATALOGUE,
    CatalogueEntry,
    Known,
    acyclic_pairs,
    inventory,
    load,
    scenes,
    two_strips,
    where,
)
from blindsight.data.confined import decode_image
from blindsight.data.dataset_readers import load_adult, load_bank, load_numbers
from blindsight.data.fetch import cache_folder, data_folder, get
from blindsight.data.limits import LIMITS, Limits
from blindsight.data.listing import load_class_folders, load_folder
from blindsight.data.reading import read_image, to_rgb
from blindsight.data.sets import (
    ImageSet,
    MultiLabelSet,
    PairSet,
    Table,
    partition_indices,
    split_indices,
)
from blindsight.data.sources import DecodedPhotos, Files, LazyImages, ZipMembers, find_damaged
from blindsight.data.tables import Column, load_arff, load_csv, load_multilabel_arff

__all__ = [
    "CATALOGUE",
    "LIMITS",
    "VOC_CLASSES",
    "CatalogueEntry",
    "Column",
    "DecodedPhotos",
    "Files",
    "ImageSet",
    "Known",
    "LazyImages",
    "Limits",
    "MultiLabelSet",
    "PairSet",
    "Table",
    "ZipMembers",
    "acyclic_pairs",
    "cache_folder",
    "data_folder",
    "decode_image",
    "find_damaged",
    "get",
    "inventory",
    "load",
    "load_adult",
    "load_arff",
    "load_arrays",
    "load_bank",
    "load_celeba",
    "load_cifar",
    "load_class_folders",
    "load_coco",
    "load_csv",
    "load_folder",
    "load_idx",
    "load_label_list",
    "load_multilabel_arff",
    "load_numbers",
    "load_nuswide",
    "load_voc",
    "partition_indices",
    "read_idx",
    "read_image",
    "scenes",
    "split_indices",
    "to_rgb",
    "two_strips",
    "where",
    "write_idx",
]
