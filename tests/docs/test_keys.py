"""The page of the keys of the YAML."""

from tools.key_pages import PAGE, keys_page


def test_it_is_what_the_classes_say():
    """If not: `python -m tools.key_pages`."""
    text = PAGE.read_text(encoding="utf-8")
    assert text == keys_page()
    for line in (
        "## trainer.scheduler (plateau)",
        "### bridgescaler_transform",
        "| `epochs` | integer |",
        "### almost-fair-crps",
        "### wxformer",
    ):
        assert line in text
