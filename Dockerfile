# Two images from one file: `--target cpu` (the last stage, so the default) and `--target gpu`.
# docs/deploy.md says how they are run; `make image-check` builds and runs them.

ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /opt/venv
RUN python -m venv /opt/venv
COPY deploy/requirements.txt ./

# What is served, compiled: the root file system is read-only later. The dashboard's libraries come by their lock file.
FROM packages AS files
WORKDIR /opt/loraplex
COPY src src
COPY platform platform
COPY migrations migrations
COPY examples/demo examples/demo
COPY LICENSE THIRD_PARTY.md ./
COPY --chmod=0755 deploy/healthcheck.py deploy/loraplex bin/
RUN /opt/venv/bin/python platform/web/frontend/install.py
RUN rm -r platform/web/frontend/node_modules
RUN python -m compileall -q src platform migrations examples
# Files keep the modes of the checkout, which a narrow umask closes to the user of the image.
RUN chmod -R go=rX .

# TORCH_INDEX: a package index with torch for CPUs alone; without one torch may come with several GB of CUDA.
FROM packages AS packages-cpu
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=
RUN /opt/venv/bin/python -m pip install --quiet ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$TORCH"
RUN /opt/venv/bin/python -m pip install --quiet -r requirements.txt "$TORCH"

# torch for CUDA brings the triton that it goes with.
FROM packages AS packages-gpu
ARG TORCH=torch==2.13.0
ARG TORCH_GPU_INDEX=
RUN /opt/venv/bin/python -m pip install --quiet ${TORCH_GPU_INDEX:+--index-url "$TORCH_GPU_INDEX"} "$TORCH"
RUN /opt/venv/bin/python -m pip install --quiet -r requirements.txt "$TORCH"

# No secret is in any layer: the first start makes them in /data, or they are mounted (LORAPLEX_*_FILE).
FROM ${PYTHON_IMAGE} AS runtime
RUN groupadd --gid 10001 loraplex
RUN useradd --uid 10001 --gid 10001 --no-create-home --home-dir /cache --shell /usr/sbin/nologin loraplex
RUN install --directory --owner=10001 --group=10001 --mode=0700 /data /cache
WORKDIR /opt/loraplex
COPY --from=files /opt/loraplex /opt/loraplex
ENV PATH=/opt/venv/bin:/opt/loraplex/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/opt/loraplex/src \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/cache \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface \
    TRITON_CACHE_DIR=/cache/triton \
    LORAPLEX_HOST=0.0.0.0 \
    LORAPLEX_PORT=8000 \
    LORAPLEX_DATA_DIR=/data
VOLUME ["/data", "/cache"]
EXPOSE 8000
STOPSIGNAL SIGTERM
# The first start compiles: minutes where few cores are free. Whoever answers sooner is healthy sooner.
HEALTHCHECK --interval=10s --timeout=5s --start-period=900s --retries=3 CMD ["python", "/opt/loraplex/bin/healthcheck.py"]
ENTRYPOINT ["loraplex"]
CMD ["serve"]

# triton compiles its launchers with the C compiler of the image.
FROM runtime AS gpu
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY --from=packages-gpu /opt/venv /opt/venv
ENV LORAPLEX_DEVICE=cuda NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001

FROM runtime AS cpu
COPY --from=packages-cpu /opt/venv /opt/venv
ENV LORAPLEX_DEVICE=cpu
USER 10001:10001
