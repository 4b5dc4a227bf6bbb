"""Cases of 2-D convolutions and torch's results, for tests of all implementations."""

import torch

from tests.support.gradients import draw, torch_values

# name: input (height, width, channels), kernel (height, width, channels out), keywords.
CASES = {
    "1x1": ((5, 6, 3), (1, 1, 4), {}),
    "3x3 same": ((7, 8, 3), (3, 3, 4), {"padding": ((1, 1), (1, 1))}),
    "3x3 valid": ((7, 8, 3), (3, 3, 4), {}),
    "even kernel": ((9, 8, 2), (4, 2, 3), {}),
    "even kernel, uneven padding": (
        (9, 8, 2),
        (4, 2, 3),
        {"padding": ((1, 2), (0, 1))},
    ),
    "one side only": ((6, 6, 2), (3, 3, 2), {"padding": ((2, 0), (0, 2))}),
    "stride 2, kernel 2": ((8, 10, 3), (2, 2, 4), {"stride": (2, 2)}),
    "stride 2, kernel 3": (
        (9, 10, 3),
        (3, 3, 4),
        {"stride": (2, 2), "padding": ((1, 1), (1, 1))},
    ),
    "stride 2, kernel 4": (
        (8, 10, 3),
        (4, 4, 4),
        {"stride": (2, 2), "padding": ((1, 1), (1, 1))},
    ),
    "stride 2 leaves a row over": ((9, 11, 3), (4, 4, 4), {"stride": (2, 2)}),
    "stride 4 leaves three over": ((23, 19, 2), (8, 4, 3), {"stride": (4, 4)}),
    "stride 4, kernel 32": (
        (40, 44, 2),
        (32, 32, 2),
        {"stride": (4, 4), "padding": ((14, 14), (14, 14))},
    ),
    "stride 4, kernel 16": (
        (21, 20, 2),
        (16, 16, 2),
        {"stride": (4, 4), "padding": ((6, 6), (6, 6))},
    ),
    "stride 2, many columns": (
        (10, 201, 3),
        (6, 32, 4),
        {"stride": (2, 2), "padding": ((2, 2), (15, 15))},
    ),
    "stride 3 and 2, many columns, some left over": (
        (14, 150, 2),
        (9, 16, 3),
        {"stride": (3, 2), "padding": ((1, 0), (3, 4))},
    ),
    "stride above the kernel": ((11, 12, 2), (2, 2, 3), {"stride": (4, 4)}),
    "stride of one dim": ((9, 8, 2), (2, 3, 3), {"stride": (2, 1)}),
    "unlike strides": ((12, 13, 2), (4, 6, 3), {"stride": (2, 3)}),
    "kernel as large as the input": ((6, 5, 2), (6, 5, 3), {}),
    "dilation": (
        (11, 12, 2),
        (3, 3, 3),
        {"dilation": (2, 3), "padding": ((2, 2), (3, 3))},
    ),
    "dilation and stride": (
        (13, 12, 2),
        (2, 2, 3),
        {"dilation": (3, 2), "stride": (2, 2)},
    ),
    "groups": ((6, 7, 4), (3, 3, 6), {"groups": 2, "padding": ((1, 1), (1, 1))}),
    "depthwise, stride 2": (
        (8, 8, 4),
        (2, 2, 4),
        {"groups": 4, "stride": (2, 2)},
    ),
    "few points, many channels": (
        (4, 5, 3),
        (4, 3, 24),
        {"padding": ((2, 1), (0, 1))},
    ),
    "few points, wide padding": ((2, 3, 2), (3, 3, 98), {"padding": ((3, 2), (2, 4))}),
    "same": ((6, 7, 2), (3, 5, 3), {"padding": "same"}),
    "same, even kernel": ((6, 7, 2), (4, 2, 3), {"padding": "same"}),
    "same, dilation": ((6, 7, 2), (4, 3, 3), {"padding": "same", "dilation": (3, 2)}),
}


def torch_conv(x, kernel, *, stride=(1, 1), padding=((0, 0), (0, 0)), **keywords):
    x, kernel = x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1)
    if padding == "same":
        keywords["padding"] = padding
    else:
        x = torch.nn.functional.pad(x, (*padding[1], *padding[0]))
    out = torch.nn.functional.conv2d(x, kernel, stride=stride, **keywords)
    return out.permute(0, 2, 3, 1)


def arrays(name):
    """Returns input, kernel and keywords of a case."""
    size, (kernel_h, kernel_w, channel_out), keywords = CASES[name]
    group_in = size[2] // keywords.get("groups", 1)
    kernel = draw((kernel_h, kernel_w, group_in, channel_out), seed=1)
    return draw((2, *size)), kernel, keywords


def of_torch(x, kernel, keywords):
    """Returns torch's output and gradients."""
    return torch_values(lambda x, k: torch_conv(x, k, **keywords), x, kernel)
