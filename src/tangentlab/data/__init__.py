"""Data: image sets from their canonical files (or embedded, or fetched), toy sets, and what is done to them."""

from tangentlab.data.clusters import Clusters, random_clusters
from tangentlab.data.dataset import Dataset
from tangentlab.data.group_images import GROUP_SETS, GroupImages, group_images
from tangentlab.data.images import IMAGE_SETS, load, stand_in
from tangentlab.data.places import cache_folder
from tangentlab.data.toys import (
    disk,
    disk_labels,
    flower,
    gaussian_grid,
    gaussian_mixture,
    grid,
    sinusoid_sum,
    sinusoids,
    spiral,
    spiral_curve,
    yin_yang,
    yin_yang_labels,
)
from tangentlab.data.transforms import (
    balanced_subset,
    downscale,
    label_noise,
    only_classes,
    shuffled,
    standardize,
    stratified_subset,
    subset,
)

__all__ = [
    "GROUP_SETS",
    "IMAGE_SETS",
    "Clusters",
    "Dataset",
    "GroupImages",
    "balanced_subset",
    "cache_folder",
    "disk",
    "disk_labels",
    "downscale",
    "flower",
    "gaussian_grid",
    "gaussian_mixture",
    "grid",
    "group_images",
    "label_noise",
    "load",
    "only_classes",
    "random_clusters",
    "shuffled",
    "sinusoid_sum",
    "sinusoids",
    "spiral",
    "spiral_curve",
    "stand_in",
    "standardize",
    "stratified_subset",
    "subset",
    "yin_yang",
    "yin_yang_labels",
]
