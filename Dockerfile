# credit-jax for CPUs: docker build -t credit-jax .
# for NVIDIA GPUs:     docker build -t credit-jax --build-arg EXTRAS=cuda,cloud .
#   docker run --gpus all -v /data:/data credit-jax train --config /data/model.yml
# The wheels of JAX bring CUDA; the host needs the driver and NVIDIA's container toolkit.
# Drivers before 580: EXTRAS=cuda12,cloud.
FROM python:3.12-slim

ARG EXTRAS=cloud
WORKDIR /opt/credit_jax
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY credit_jax ./credit_jax
COPY credit_torch_bridge ./credit_torch_bridge
RUN pip install --no-cache-dir -c constraints.txt ".[${EXTRAS}]"

WORKDIR /work
ENTRYPOINT ["credit-jax"]
CMD ["--help"]
