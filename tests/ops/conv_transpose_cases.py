"""Cases of transposed convolutions, compared with torch by all implementations."""

from tests.support.gradients import assert_same, draw, jax_values, torch_values

# name: input (sizes, channels), kernel (sizes, channels out / groups), of torch.
CASES_2D = {
    "1x1": ((5, 6, 3), (1, 1, 4), {}),
    "stride 1, kernel 3": ((5, 6, 3), (3, 3, 4), {"padding": (1, 1)}),
    "kernel 2, stride 2": ((5, 6, 3), (2, 2, 4), {"stride": (2, 2)}),
    "kernel 4, stride 4": ((3, 4, 3), (4, 4, 2), {"stride": (4, 4)}),
    "kernel is stride, padding": (
        (5, 6, 3),
        (3, 2, 4),
        {"stride": (3, 2), "padding": (1, 1), "output_padding": (2, 1)},
    ),
    "kernel 4, stride 2, padding 1": (
        (5, 6, 3),
        (4, 4, 2),
        {"stride": (2, 2), "padding": (1, 1)},
    ),
    "kernel 4 by 2, stride 2": ((5, 6, 3), (4, 2, 2), {"stride": (2, 2)}),
    "kernel 3, stride 2": ((5, 6, 3), (3, 3, 2), {"stride": (2, 2)}),
    "kernel 3, stride 2, output padding": (
        (5, 6, 3),
        (3, 3, 2),
        {"stride": (2, 2), "padding": (1, 1), "output_padding": (1, 1)},
    ),
    "kernel below the stride": (
        (4, 5, 2),
        (2, 1, 3),
        {"stride": (3, 4), "output_padding": (1, 3)},
    ),
    "padding above the kernel": (
        (7, 8, 2),
        (3, 2, 3),
        {"stride": (2, 3), "padding": (4, 5)},
    ),
    "unlike strides": (
        (5, 4, 2),
        (5, 7, 3),
        {"stride": (1, 3), "padding": (2, 0), "output_padding": (0, 2)},
    ),
    "dilation": ((5, 6, 2), (3, 3, 2), {"dilation": (2, 3), "padding": (2, 1)}),
    "dilation and stride": (
        (5, 6, 2),
        (3, 2, 2),
        {"dilation": (2, 3), "stride": (2, 2), "output_padding": (1, 2)},
    ),
    "dilation and stride of one dim each": (
        (5, 6, 2),
        (3, 2, 2),
        {"dilation": (2, 1), "stride": (1, 3), "output_padding": (1, 0)},
    ),
    "groups": (
        (5, 6, 4),
        (4, 3, 3),
        {"groups": 2, "stride": (2, 2), "padding": (1, 0)},
    ),
    "depthwise, kernel is stride": (
        (5, 6, 3),
        (2, 2, 1),
        {"groups": 3, "stride": (2, 2)},
    ),
    "few points, kernel is stride": ((2, 2, 24), (2, 2, 12), {"stride": (2, 2)}),
    "one point": ((1, 1, 2), (4, 4, 3), {"stride": (2, 2), "padding": (1, 1)}),
}

CASES_3D = {
    "patch recovery 2 4 4": ((2, 3, 4, 3), (2, 4, 4, 2), {"stride": (2, 4, 4)}),
    "kernel 4, stride 2": (
        (2, 4, 3, 2),
        (4, 4, 4, 3),
        {"stride": (2, 2, 2), "padding": (1, 1, 1)},
    ),
    "everything": (
        (3, 4, 3, 4),
        (2, 3, 2, 1),
        {
            "stride": (1, 2, 3),
            "padding": (1, 1, 0),
            "output_padding": (0, 1, 2),
            "dilation": (2, 1, 2),
            "groups": 2,
        },
    ),
}


def check(function, reference, name, case):
    """Compares with torch, whose weight is (channel_in, out, sizes)."""
    size, kernel, keywords = case
    num = len(size) - 1
    x = draw((2, *size))
    weight = draw((*kernel[:-1], size[-1], kernel[-1]), seed=1)
    pads = tuple((p, p) for p in keywords.get("padding", (0,) * num))

    def torch_op(x, weight):
        spatial = range(num)
        x = x.permute(0, num + 1, *(1 + d for d in spatial))
        weight = weight.permute(num, num + 1, *spatial)
        out = reference(x, weight, **keywords)
        return out.permute(0, *(2 + d for d in spatial), 1)

    def op(x, weight):
        return function(x, weight, **{**keywords, "padding": pads})

    assert_same(jax_values(op, x, weight), torch_values(torch_op, x, weight), name)
