# The images of fluxqueue (docs/admin/images.md):
#
#   fluxqueue   controller, worker, migrations, hooks and the command line
#   webhook     the admission webhook, without the scheduler's and the database's packages
#
# `make images` builds both. The base is pinned by its tag; pin it by digest with
#   --build-arg PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm@sha256:...
# Pass your own package index as a secret: --secret id=pip,src=pip.conf
ARG PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# The time of every file. `make images` passes that of the commit.
ARG SOURCE_DATE_EPOCH=315532800
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
WORKDIR /src
COPY requirements/build.lock requirements/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf,mode=0444 \
    python3 -m venv /build \
    && /build/bin/pip install --quiet --no-cache-dir --only-binary :all: --require-hashes \
       --requirement requirements/build.lock --constraint requirements/build.lock
COPY LICENSE README.md pyproject.toml ./
COPY chart/crds chart/crds
COPY chart/files/policies.yaml chart/files/released-pods.yaml chart/files/roles.yaml chart/files/ungrouped-pods.yaml chart/files/
COPY migrations migrations
COPY psij-descriptors psij-descriptors
COPY webhook webhook
COPY fluxqueue fluxqueue
RUN /build/bin/pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir /dist .
COPY images images

FROM build AS fluxqueue-files
COPY requirements/runtime.lock requirements/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf,mode=0444 \
    images/assemble requirements/runtime.lock /opt/fluxqueue

FROM build AS webhook-files
COPY requirements/webhook.lock requirements/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf,mode=0444 \
    images/assemble requirements/webhook.lock /opt/fluxqueue fluxqueue kubectl-fluxqueue \
        kubectl_complete-fluxqueue

# The parts of both images. There is no HEALTHCHECK, because each part has its own: the chart and
# docker-compose.yml have them. Any user works (OpenShift), because nothing is written.
FROM ${PYTHON_IMAGE} AS base
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="https://github.com/converged-computing/fluxqueue" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.vendor="The fluxqueue authors" \
      org.converged-computing.fluxqueue.sbom="/opt/fluxqueue/sbom.cdx.json"
ENV PATH=/opt/fluxqueue/bin:${PATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1
WORKDIR /
USER 65532:65532

FROM base AS webhook
LABEL org.opencontainers.image.title="fluxqueue-webhook" \
      org.opencontainers.image.description="The admission webhook of fluxqueue"
COPY --from=webhook-files /opt/fluxqueue /opt/fluxqueue
EXPOSE 8443
ENTRYPOINT ["/opt/fluxqueue/bin/python", "-P", "-m", "fluxqueue_webhook"]

# The last target is what a build without --target makes.
FROM base AS fluxqueue
LABEL org.opencontainers.image.title="fluxqueue" \
      org.opencontainers.image.description="Controller, worker and command line of fluxqueue"
COPY --from=fluxqueue-files /opt/fluxqueue /opt/fluxqueue
EXPOSE 8081
ENTRYPOINT ["/opt/fluxqueue/bin/fluxqueue"]
