"""Bytes that TensorStore read from files of this process, as it counts them."""

import tensorstore


def bytes_read() -> int:
    """The count so far, with the metadata of arrays that were opened."""
    name = "/tensorstore/kvstore/file/bytes_read"
    (metric,) = tensorstore.experimental_collect_matching_metrics(name)
    return sum(value["value"] for value in metric["values"])
