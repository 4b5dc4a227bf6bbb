"""HTML of pages."""

from credit_jax.visualization.html import page_of_sections, part


def test_control_characters_are_written_out():
    text = "wind\x07\x9b2J,\tlevel\n500\xa0hPa \u2265 0"
    page = page_of_sections("T\x1b[31m", "", {"a b": [part("paragraph", text=text)]})
    assert r"<title>T\x1b[31m</title>" in page
    assert "<p>wind\\x07\\x9b2J,\tlevel\n500\xa0hPa \u2265 0</p>" in page
    assert '<a href="#a-b">' in page
    assert '<section id="a-b">' in page
