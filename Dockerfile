# An image of experiment.py; docs/image.md says how to build and run it.
# BASE is a Debian 13, or another Debian with Python 3.13.
ARG BASE=python:3.13-slim

FROM $BASE AS program

# Any value adds what TensorFlow needs for GPUs.
ARG CUDA
# The path of a wheel of DeepMind Lab in this folder, as wheels/deepmind_lab-1.0-[...].whl.
ARG LAB_WHEEL
# Names of more packages of Debian.
ARG PACKAGES
# These, or pip's configuration as the secret "pip", say where packages come from.
ARG PIP_INDEX_URL
ARG PIP_CERT

ENV HOME=/tmp PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/app
RUN --mount=type=bind,target=/context \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    set -e; \
    install_packages() { \
      apt-get update; \
      apt-get install --yes --no-install-recommends "$@"; \
      rm -rf /var/lib/apt/lists/*; \
    }; \
    python3 -c 'import ensurepip' 2> /dev/null || PACKAGES="python3-venv $PACKAGES"; \
    if [ -n "$PACKAGES" ]; then install_packages $PACKAGES; fi; \
    echo 'user:x:1000:1000::/tmp:/bin/sh' >> /etc/passwd; \
    python3 -m venv /venv; \
    pip install --no-cache-dir --no-deps --require-hashes \
      --requirement "/context/requirements/image${CUDA:+-cuda}.txt"; \
    if [ -n "$LAB_WHEEL" ]; then \
      pip install --no-cache-dir "/context/$LAB_WHEEL" dm-env six; \
      install_packages zip libosmesa6 libegl1 libgl1 libsdl2-2.0-0; \
    fi

WORKDIR /app
COPY LICENSE *.py ./
COPY configs configs
COPY tools tools
COPY scalable_agent_popart scalable_agent_popart
RUN chmod -R a+rX . && python -m compileall -q .

# --target=test makes this stage, with the tests and what they need.
FROM program AS test
ARG PIP_INDEX_URL
ARG PIP_CERT
COPY . .
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --no-cache-dir --no-deps --require-hashes \
      --requirement requirements/python3.13.txt \
    && chmod -R a+rX .
USER 1000:1000
ENTRYPOINT ["python", "-m", "pytest", "-p", "no:cacheprovider"]
CMD ["-n", "2", "--dist", "worksteal"]

FROM program
# Runs record the commit that this folder holds.
ARG REVISION
LABEL org.opencontainers.image.revision=$REVISION
ENV GIT_REVISION=$REVISION

USER 1000:1000
ENTRYPOINT ["python", "experiment.py"]
