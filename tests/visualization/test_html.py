"""HTML of pages."""

from credit_jax.visualization.html import document


def test_control_characters_are_written_out():
    page = document("T\x1b[31m", "<p>wind\x07\x9b2J,\tlevel\n500\xa0hPa \u2265 0</p>")
    assert r"<title>T\x1b[31m</title>" in page
    assert "<p>wind\\x07\\x9b2J,\tlevel\n500\xa0hPa \u2265 0</p>" in page
