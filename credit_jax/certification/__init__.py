"""The certificate: one model on every mesh, compared with one device.

`certify` takes any model; the command takes a config, with all that it says of blocks,
losses and forecasts (docs/certificate.md).
"""

from credit_jax.certification.certify import Certificate, certify

__all__ = ["Certificate", "certify"]
