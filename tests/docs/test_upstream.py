"""docs/upstream.md holds the output of tools/upstream.py for the tests' CREDIT."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("upstream", ROOT / "tools/upstream.py")
assert spec is not None
assert spec.loader is not None
upstream = importlib.util.module_from_spec(spec)
spec.loader.exec_module(upstream)


def checkout():
    """The folder that has CREDIT's package; nothing of it is imported."""
    found = importlib.util.find_spec("credit")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0]).parent


@pytest.mark.reference
def test_the_page_holds_the_output():
    page = (ROOT / "docs/upstream.md").read_text()
    made = re.search(r"CHECKOUT_OF_CREDIT -->\n(.*)\n<!-- the end", page, re.DOTALL)
    assert made is not None
    assert made[1].splitlines() == upstream.report(checkout())
    for name in re.findall("`(.+?)`", made[1]):
        reasons = page[made.end() :]
        assert (
            name in ("trainer", "data")
            or f"`{name}`" in reasons
            or name
            in {
                "crossformer-diffusion",
                "unet-diffusion",
                "swin",
            }
        ), f"{name}: no reason"


@pytest.mark.reference
def test_what_a_newer_version_adds(tmp_path):
    """A model, an argument, a key and a command that are not here are listed."""
    for path in (checkout() / "credit").rglob("*.py"):
        copy = tmp_path / "credit" / path.relative_to(checkout() / "credit")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())

    def change(name, old, new):
        path = tmp_path / "credit" / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    first = "_MODEL_REGISTRY = {\n"
    change("models/__init__.py", first, first + '    "newest": ("a.b", "C", "d"),\n')
    change("postblock/square.py", "def __init__(self, ", "def __init__(self, newkey, ")
    text = "\n\ndef new(conf):\n    return conf['trainer'].get('new_key')\n"
    path = tmp_path / "credit/trainers/utils.py"
    path.write_text(path.read_text() + text)
    train = 'p = sub.add_parser("train"'
    change("cli/_parser.py", train, f'p = sub.add_parser("fly")\n    {train}')
    lines = set(upstream.report(tmp_path)) - set(upstream.report(checkout()))
    assert lines == {
        "- model: `newest`",
        "- postblock `square_transform`: `newkey`",
        "- `trainer`: `new_key`",
        "- `fly`, `ask`",
    }


def test_no_checkout(tmp_path, monkeypatch, capsys):
    """A line, not a traceback."""
    monkeypatch.setattr("sys.argv", ["upstream.py", str(tmp_path)])
    with pytest.raises(SystemExit):
        upstream.main()
    assert "has no package credit; give a checkout" in capsys.readouterr().err
