"""Data sets: sources, samples, channel schema, sampler and loader."""

from credit_jax.data.dataset import Dataset, Sample, open_dataset
from credit_jax.data.loader import Loader, Split, build_loader, splits
from credit_jax.data.sample_reader import Batch
from credit_jax.data.sampler import Sampler
from credit_jax.data.schema import ChannelGroup, ChannelSchema

__all__ = [
    "Batch",
    "ChannelGroup",
    "ChannelSchema",
    "Dataset",
    "Loader",
    "Sample",
    "Sampler",
    "Split",
    "build_loader",
    "open_dataset",
    "splits",
]
