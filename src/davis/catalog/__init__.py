"""The datasets of the paper by name: where they are looked for, what is there, and how to get the rest."""

from davis.catalog.finding import (
    MissingDataset,
    Row,
    count_images,
    data_directory,
    dataset,
    find,
    inventory,
    markdown,
    members,
    open_dataset,
)
from davis.catalog.table import DATASETS, PREPROCESSING, Dataset

__all__ = [
    "DATASETS",
    "PREPROCESSING",
    "Dataset",
    "MissingDataset",
    "Row",
    "count_images",
    "data_directory",
    "dataset",
    "find",
    "inventory",
    "markdown",
    "members",
    "open_dataset",
]
