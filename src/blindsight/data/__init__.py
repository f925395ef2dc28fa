"""Image sets, tables and labelled pairs; readers of the standard formats; sets that ship with packages."""

from __future__ import annotations

from blindsight.data.catalogue import CATALOGUE, Entry, Known, inventory, load, load_arrays, load_label_graph, where
from blindsight.data.census import load_adult, load_bank
from blindsight.data.fetch import get
from blindsight.data.formats.csvtable import Column, load_csv
from blindsight.data.formats.idx import load_idx, read_idx, write_idx
from blindsight.data.limits import LIMITS, Limits
from blindsight.data.places import cache_folder, data_folder
from blindsight.data.reading import decode_image, read_image, to_rgb
from blindsight.data.sets import ImageSet, MultiLabelSet, PairSet, Table
from blindsight.data.sources import Files, LazyImages, ZipMembers
from blindsight.data.splits import partition_indices, split_indices

__all__ = [
    "CATALOGUE",
    "LIMITS",
    "Column",
    "Entry",
    "Files",
    "ImageSet",
    "Known",
    "LazyImages",
    "Limits",
    "MultiLabelSet",
    "PairSet",
    "Table",
    "ZipMembers",
    "cache_folder",
    "data_folder",
    "decode_image",
    "get",
    "inventory",
    "load",
    "load_adult",
    "load_arrays",
    "load_bank",
    "load_csv",
    "load_idx",
    "load_label_graph",
    "partition_indices",
    "read_idx",
    "read_image",
    "split_indices",
    "to_rgb",
    "where",
    "write_idx",
]
