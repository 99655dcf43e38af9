# An image of experiment.py; docs/image.md says how to build and run it.
# BASE is a Debian 13, or another Debian with Python 3.13.
ARG BASE=python:3.13-slim

# In its place a checkout of DeepMind Lab is given, with --build-context lab=FOLDER.
FROM scratch AS lab

# Its wheel. Without a checkout this does nothing.
FROM $BASE AS wheels
ARG LAB_RENDERER=osmesa
ARG PIP_INDEX_URL
ARG PIP_CERT
RUN --mount=type=bind,target=/context \
    --mount=type=bind,from=lab,target=/lab \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    set -e; \
    mkdir /wheels; \
    if [ -e /lab/BUILD ]; then \
      apt-get update; \
      apt-get install --yes --no-install-recommends python3-venv python3-dev \
        g++ gcc libabsl-dev libegl-dev libeigen3-dev libgl-dev libglib2.0-dev libjpeg-dev \
        liblua5.1-0-dev libosmesa6-dev libpng-dev libsdl2-dev libxml2-dev ninja-build pkg-config \
        zip zlib1g-dev; \
      python3 -m venv /venv; \
      sed -n '/^numpy==/,/[^\\]$/p' /context/requirements/image.txt > /numpy.txt; \
      /venv/bin/pip install --no-cache-dir --no-deps --require-hashes --requirement /numpy.txt; \
      /venv/bin/python /context/tools/build_deepmind_lab.py \
        --source=/lab --output=/wheels --renderer="$LAB_RENDERER"; \
    fi

FROM $BASE AS program

# Any value adds what TensorFlow needs for GPUs.
ARG CUDA
# The path of a wheel of DeepMind Lab in this folder, as wheels/deepmind_lab-1.0-[...].whl.
ARG LAB_WHEEL
# More packages of Debian.
ARG PACKAGES
# Where packages come from is pip's to know: by these, or by its configuration as the secret "pip".
ARG PIP_INDEX_URL
ARG PIP_CERT

ENV HOME=/tmp PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/app
RUN --mount=type=bind,target=/context \
    --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
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
    if [ -n "$LAB_WHEEL" ]; then LAB_WHEEL=/context/$LAB_WHEEL; fi; \
    for wheel in $LAB_WHEEL /wheels/*.whl; do \
      if [ "$wheel" = "$LAB_WHEEL" ] || [ -e "$wheel" ]; then \
        pip install --no-cache-dir "$wheel"; \
        install_packages $(python -c 'import importlib.metadata as metadata; \
          print(*metadata.metadata("deepmind-lab").get_all("Requires-External", []))'); \
      fi; \
    done

WORKDIR /app
COPY LICENSE *.py ./
COPY configs configs
COPY tools tools
COPY scalable_agent_popart scalable_agent_popart
RUN chmod -R a+rX . && python -m compileall -q .

# With --target=test: the tests, and what they need.
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
# The commit that this folder holds, which runs record.
ARG REVISION
LABEL org.opencontainers.image.revision=$REVISION
ENV GIT_REVISION=$REVISION

USER 1000:1000
ENTRYPOINT ["python", "experiment.py"]
