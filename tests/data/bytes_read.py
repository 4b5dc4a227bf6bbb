"""Number of bytes that TensorStore has read from files in this process."""

import tensorstore


def bytes_read() -> int:
    """Returns the bytes read so far, including the metadata of opened arrays."""
    name = "/tensorstore/kvstore/file/bytes_read"
    (metric,) = tensorstore.experimental_collect_matching_metrics(name)
    return sum(value["value"] for value in metric["values"])
