"""Image sets: pictures in a fixed order, from arrays, folders, archives or a dataset object."""

from davis.sets.arrays import ArraySet, load_npz
from davis.sets.files import FolderSet, TarSet
from davis.sets.formats import Split
from davis.sets.objects import Indexed, ObjectSet
from davis.sets.opening import AnySet, open_set

__all__ = ["AnySet", "ArraySet", "FolderSet", "Indexed", "ObjectSet", "Split", "TarSet", "load_npz", "open_set"]
