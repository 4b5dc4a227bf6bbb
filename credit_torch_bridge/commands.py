"""The commands of the bridge, known without importing torch."""

from collections.abc import Mapping
from types import MappingProxyType

from credit_jax.cli.commands import CommandEntry

# Converting and comparing need no accelerator.
COMMANDS: Mapping[str, CommandEntry] = MappingProxyType(
    {
        name: CommandEntry(
            f"credit_torch_bridge.cli:{name.title()}", summary, "bridge", "cpu"
        )
        for name, summary in {
            "convert": "a checkpoint of CREDIT to credit_jax, or back",
            "inspect": "what is in a checkpoint",
            "compare": "run CREDIT beside credit_jax, block by block",
            "config": "convert a config file of CREDIT's",
        }.items()
    }
)
