"""Fixtures: the command, checkpoints, and a shared CREDIT run, also resumed."""

import contextlib
import io
import shutil
from functools import partial

import pytest
import yaml


class Bridge:
    """The command; returns what it prints."""

    def __call__(self, *arguments, code=0, says=()):
        from credit_torch_bridge.__main__ import main

        seen = io.StringIO()
        with contextlib.redirect_stdout(seen), contextlib.redirect_stderr(seen):
            ended = main([str(argument) for argument in arguments])
        text = seen.getvalue()
        print(text)
        assert ended == code, text
        for words in [says] if isinstance(says, str) else says:
            assert words in text
        return text

    def convert(self, to, source, out, *options, **expected):
        """Converts a checkpoint; where that is refused, `out` must not be there."""
        given = "--to", to, "--checkpoint", source, "--out", out, *options
        text = self("convert", *given, **expected)
        assert out.exists() == ("code" not in expected)
        return text


@pytest.fixture(scope="session")
def bridge():
    """`bridge("inspect", ...)`, `bridge.convert("jax", checkpoint, out, ...)`."""
    return Bridge()


@pytest.fixture(scope="session")
def checkpoint(torch):
    """A checkpoint of epoch 2, 60 micro-batches."""
    from tests.bridge.runs import draw_checkpoint

    return draw_checkpoint()


@pytest.fixture(scope="session")
def credit_run_folder(checkpoint, torch, tmp_path_factory):
    """The folder of a CREDIT run of three epochs, of which the first was the best.

    Tests must not change it.
    """
    from credit_torch_bridge import to_torch
    from tests.bridge.runs import CONFIG, earlier

    folder = tmp_path_factory.mktemp("credit")
    files = {"": checkpoint}
    files |= {"best_": earlier(checkpoint, 0), "backup_": earlier(checkpoint, 1)}
    for prefix, content in files.items():
        written = to_torch(CONFIG, content)
        torch.save(written["checkpoint.pt"], folder / f"{prefix}checkpoint.pt")
    average = written["checkpoint_ema.pt"] | {"epoch": 2}
    torch.save(average, folder / "checkpoint_ema.pt")
    (folder / "model.yml").write_text(yaml.safe_dump(CONFIG))
    rows = "0,0,3.0,1.5\n1,1,2.5,1.75\n2,2,2.0,1.625\n"
    log = f"index,epoch,train_loss,valid_loss\n{rows}"
    (folder / "training_log.csv").write_text(log)
    return folder


@pytest.fixture(scope="session")
def jax_run(bridge, credit_run_folder, tmp_path_factory):
    """The folder of this run as one of credit_jax; tests must not change it."""
    folder = tmp_path_factory.mktemp("converted") / "jax"
    bridge.convert("jax", credit_run_folder, folder)
    return folder


@pytest.fixture(scope="session")
def credit_folder(credit_run):
    """The `save_loc` of a finished CREDIT run of one epoch with 20 steps."""
    return credit_run[0] / "run"


@pytest.fixture(scope="session")
def model_config(credit_folder):
    """The config of that run."""
    return yaml.safe_load((credit_folder / "model.yml").read_text())


@pytest.fixture(scope="session")
def continue_credit(credit_run):
    """`continue_credit(folder)` -> CREDIT's next epoch as recorded, and its output.

    The folder holds a checkpoint and a `model.yml` with CREDIT's `load_*` keys.
    """
    from tests.bridge.going_on import credit_goes_on

    return partial(credit_goes_on, data=credit_run[0])


@pytest.fixture(scope="session")
def resumed_credit(credit_folder, continue_credit, tmp_path_factory):
    """The epoch that CREDIT itself trains after that run."""
    folder = tmp_path_factory.mktemp("resumed") / "run"
    shutil.copytree(credit_folder, folder)
    config = yaml.safe_load((folder / "model.yml").read_text())
    config["save_loc"] = str(folder)
    loads = ("load_weights", "load_optimizer", "load_scaler", "load_scheduler")
    config["trainer"] |= dict.fromkeys((*loads, "reload_epoch"), True)
    (folder / "model.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    return continue_credit(folder)[0]
