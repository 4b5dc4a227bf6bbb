"""Cases of 3-D convolutions and torch's results, for tests of all implementations."""

import torch

from tests.support.gradients import draw, torch_values

# name: input (depth, height, width, channels), kernel (sizes, channels out), keywords.
CASES = {
    "1x1x1": ((2, 3, 4, 3), (1, 1, 1, 4), {}),
    "3x3x3": ((4, 5, 6, 2), (3, 3, 3, 3), {"padding": ((1, 1),) * 3}),
    "unlike": ((4, 5, 6, 2), (2, 3, 4, 3), {"padding": ((1, 0), (0, 2), (3, 1))}),
    "same": ((4, 5, 6, 2), (1, 2, 5, 3), {"padding": "same"}),
    "same, dilation": (
        (4, 5, 6, 2),
        (2, 3, 2, 3),
        {"padding": "same", "dilation": (1, 2, 3)},
    ),
    "patches": ((2, 8, 12, 3), (2, 4, 4, 5), {"stride": (2, 4, 4)}),
    "patches, points over": ((5, 9, 7, 2), (2, 4, 2, 3), {"stride": (2, 4, 2)}),
    "patches, padding": (
        (3, 9, 7, 2),
        (2, 4, 2, 3),
        {"stride": (2, 4, 2), "padding": ((1, 0), (2, 1), (0, 1))},
    ),
    "patches, groups": (
        (2, 4, 6, 4),
        (2, 2, 2, 2),
        {"stride": (2, 2, 2), "groups": 2},
    ),
    "stride": ((4, 9, 7, 2), (2, 4, 3, 3), {"stride": (1, 2, 2)}),
    "dilation, stride, groups": (
        (5, 9, 7, 4),
        (2, 3, 2, 2),
        {"stride": (1, 2, 3), "dilation": (3, 2, 1), "groups": 2},
    ),
    "patch with dilation": (
        (5, 9, 7, 2),
        (2, 2, 2, 3),
        {"stride": (2, 2, 2), "dilation": (1, 2, 3)},
    ),
}


def torch_conv(x, kernel, *, padding=((0, 0),) * 3, **keywords):
    x, kernel = x.permute(0, 4, 1, 2, 3), kernel.permute(4, 3, 0, 1, 2)
    if padding == "same":
        keywords["padding"] = padding
    else:
        x = torch.nn.functional.pad(x, (*padding[2], *padding[1], *padding[0]))
    return torch.nn.functional.conv3d(x, kernel, **keywords).permute(0, 2, 3, 4, 1)


def arrays(name):
    """Returns input, kernel and keywords of a case."""
    size, (*kernel, channel_out), keywords = CASES[name]
    shape = (*kernel, size[-1] // keywords.get("groups", 1), channel_out)
    return draw((2, *size)), draw(shape, seed=1), keywords


def of_torch(x, kernel, keywords):
    """Returns torch's output and gradients."""
    return torch_values(lambda x, k: torch_conv(x, k, **keywords), x, kernel)
