"""From text to batches: corpora, tokenizers, verified token shards, and batches that follow from seed and number."""

from depthroute.data.batches import Batch, Batches, evaluation_batches
from depthroute.data.building import build
from depthroute.data.config import BpeTokenizer, DataConfig, FilesCorpus, FileTokenizer, HubCorpus
from depthroute.data.shards import INDEX, Dataset, Index, Part, read_index
from depthroute.data.spool import Progress
from depthroute.data.tokenizer import Tokenizer

__all__ = [
    "INDEX",
    "Batch",
    "Batches",
    "BpeTokenizer",
    "DataConfig",
    "Dataset",
    "FileTokenizer",
    "FilesCorpus",
    "HubCorpus",
    "Index",
    "Part",
    "Progress",
    "Tokenizer",
    "build",
    "evaluation_batches",
    "read_index",
]
