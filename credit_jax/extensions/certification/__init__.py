"""The certificate: one model on every mesh, compared with one device.

`certify_model` takes any model; the command takes a config, with all that it says of
blocks, losses and forecasts (docs/certificate.md).
"""

from credit_jax.extensions.certification.certify import Certificate, certify_model

__all__ = ["Certificate", "certify_model"]
