# The image of every node: head, learners, engines, tools. Build it in this folder:
#     docker build -t chain-of-agents:0.1.0 .                            for nodes without GPUs
#     docker build -t chain-of-agents:0.1.0 --build-arg EXTRA=gpu .      for nodes with GPUs
FROM python:3.11-slim-bookworm

# bubblewrap keeps programs that models wrote apart; DeepSpeed builds its operations with g++ and ninja; KubeRay's probes
# call wget; the cluster launcher of Ray copies files with rsync.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap g++ ninja-build rsync wget \
    && rm -rf /var/lib/apt/lists/*

# The folder that nodes share is in this user's home: KubeRay mounts it there, and `coa submit` looks for it.
RUN useradd --create-home --uid 1000 --shell /bin/bash ray

WORKDIR /opt/chain-of-agents
COPY . .
ARG EXTRA=cpu
RUN if [ "$EXTRA" = gpu ]; then python -m venv .venv && .venv/bin/pip install --no-cache-dir --editable '.[gpu,lora]' \
    && .venv/bin/python -m compileall -q actors cluster coa jobs; \
    else PIP_NO_CACHE_DIR=1 bash scripts/setup.sh; fi
ENV PATH=/opt/chain-of-agents/.venv/bin:$PATH PYTHONUNBUFFERED=1

USER ray
WORKDIR /home/ray
