"""What a package hands on is imported from it outside, and from its module inside."""

from pathlib import Path

from tools.import_style import exports, main, problems

HANDED_ON = {"credit_jax.data": {"Loader": "credit_jax.data.loader"}}


def test_outside_from_the_package() -> None:
    source = "def f():\n    from credit_jax.data.loader import Loader, other\n"
    expected = ["tests/a.py: import Loader from credit_jax.data"]
    assert problems(source, "tests/a.py", HANDED_ON) == expected
    assert problems("from credit_jax.data import Loader", "a.py", HANDED_ON) == []
    assert problems("from credit_jax.data.loader import x", "a.py", HANDED_ON) == []


def test_inside_from_the_module() -> None:
    place = "credit_jax/data/sources/files.py"
    expected = [f"{place}: import Loader from credit_jax.data.loader"]
    source = "from credit_jax.data import Loader, sampler"
    assert problems(source, place, HANDED_ON) == expected
    source = "from credit_jax.data.loader import Loader"
    assert problems(source, place, HANDED_ON) == []
    assert len(problems(source, "credit_jax/data_set.py", HANDED_ON)) == 1


def test_what_a_package_hands_on(tmp_path: Path) -> None:
    package = tmp_path / "credit_jax/data"
    package.mkdir(parents=True)
    text = "from credit_jax.data.loader import Loader as Loader\nfrom os import sep\n"
    (package / "__init__.py").write_text(text)
    assert exports(tmp_path) == HANDED_ON


def test_the_repository(capsys) -> None:
    assert main() == 0
    assert capsys.readouterr().out == ""
    assert "credit_jax.config" in exports()
