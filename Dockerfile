# The images of Tangram. Targets: operator, agent, fetch, gateway, engine.
#
#   docker build --target operator -t tangram-operator:dev .
#   docker build --target agent    -t tangram-agent:dev .
#   docker build --target fetch    -t tangram-fetch:dev .
#   docker build --target gateway  -t tangram-gateway:dev .
#   docker build --target engine   -t tangram-engine:dev .
#
# Any builder will do: Docker with or without BuildKit, buildah, podman. Hence no `RUN --mount` and no here-documents.
# BASE_IMAGE needs python3 (3.11 or newer) with venv and, for the engine, its headers, and ca-certificates; nothing is
# installed into it from the distribution. `make push` wants it named by digest. An image holds of it what Python needs
# at run time (the stage "runtime"): no shell, no package manager, and nothing of the build. Commands in that stage and
# above it therefore have the form of a list. The engine's stands on BASE_IMAGE. Dependencies lie in a layer below the
# code, so that a change of code moves only a small layer.
#
# KERNEL_ARCHITECTURES (compute capabilities, 90 for 9.0), KERNEL_MODELS (names in the operator's catalog) and
# KERNEL_FORMATS say for which GPUs and models the engine image brings compiled kernels; empty: none, all, all. A pod
# compiles what is missing when it starts. An architecture takes some 200 CPU seconds and 6 MB. The default is what most
# clusters run; a release is built with --build-arg KERNEL_ARCHITECTURES="80 86 89 90 100 103 120".
#
# Behind a proxy: HTTP_PROXY, HTTPS_PROXY, NO_PROXY and the index variables below pass as build arguments, and a bundle
# of certificate authorities to trust while building goes to .build/ca-certificates.crt.
ARG BASE_IMAGE=docker.io/library/python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS base
# The user has a name: some libraries look their own user up and fail without one. Where a cluster gives pods a user of
# its own (OpenShift: any, of group 0), USER is that name, and HOME is a place that every user may write to.
RUN echo 'tangram:x:65532:65532:tangram:/nonexistent:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'tangram:x:65532:' >> /etc/group
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    USER=tangram
COPY .build /opt/build/.build
COPY requirements/install.sh requirements/uv.lock /opt/build/requirements/


FROM base AS runtime-files
COPY requirements/runtime_files.py /opt/build/requirements/
RUN python3 /opt/build/requirements/runtime_files.py /opt/runtime


FROM scratch AS runtime
COPY --from=runtime-files /opt/runtime /
ENV PATH=/opt/venv/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    USER=tangram
ARG BASE_IMAGE
LABEL org.opencontainers.image.base.name="${BASE_IMAGE}"


FROM base AS operator-dependencies
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG UV_DEFAULT_INDEX
ARG UV_INDEX
ARG UV_INSECURE_HOST
COPY requirements/operator.lock /opt/build/requirements/
RUN sh /opt/build/requirements/install.sh /opt/build/requirements/operator.lock \
 && echo /opt/tangram > "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tangram.pth" \
 && printf '#!/opt/venv/bin/python -P\nimport runpy\nrunpy.run_module("tangram", run_name="__main__", alter_sys=True)\n' \
      > /opt/venv/bin/tangram-operator \
 && chmod 0755 /opt/venv/bin/tangram-operator \
 && rm -f /opt/venv/.lock /opt/venv/bin/activate* /opt/venv/bin/Activate.ps1


FROM runtime AS operator
COPY --from=operator-dependencies /opt/venv /opt/venv
# What is imported here is all that needs libraries of the system.
RUN ["/opt/venv/bin/python", "-c", "import ctypes, pycurl, sqlite3, ssl; import ortools.sat.python.cp_model"]
COPY operator/tangram /opt/tangram/tangram
COPY engine/tangram_http /opt/tangram/tangram_http
# Every user may read the code, whatever the umask of the checkout, and it is compiled: pods run on a read-only root.
RUN ["/opt/venv/bin/python", "-c", "import compileall as c, pathlib, py_compile; [p.chmod(p.stat().st_mode & 0o755 | (0o555 if p.is_dir() else 0o444)) for p in pathlib.Path('/opt/tangram').rglob('*')]; assert c.compile_dir('/opt/tangram', quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"]
WORKDIR /opt/empty
USER 65532:65532
EXPOSE 8080 9090
ENTRYPOINT ["/opt/venv/bin/python", "-P", "-m", "tangram"]
LABEL org.opencontainers.image.title="tangram-operator" \
      org.opencontainers.image.description="Packs LLM inference onto GPUs and MIG slices" \
      org.opencontainers.image.licenses="Apache-2.0"


FROM base AS agent-dependencies
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG UV_DEFAULT_INDEX
ARG UV_INDEX
ARG UV_INSECURE_HOST
COPY requirements/agent.lock /opt/build/requirements/
RUN sh /opt/build/requirements/install.sh /opt/build/requirements/agent.lock \
 && echo /opt/tangram > "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tangram.pth" \
 && printf '#!/opt/venv/bin/python -P\nimport runpy\nrunpy.run_module("tangram.partition.agent", run_name="__main__", alter_sys=True)\n' \
      > /opt/venv/bin/tangram-agent \
 && chmod 0755 /opt/venv/bin/tangram-agent \
 && rm -f /opt/venv/.lock /opt/venv/bin/activate* /opt/venv/bin/Activate.ps1


FROM runtime AS agent
COPY --from=agent-dependencies /opt/venv /opt/venv
RUN ["/opt/venv/bin/python", "-c", "import ctypes, ssl"]
# What the agent imports, and no more: it is the one process of Tangram with rights on a node.
COPY operator/tangram/__init__.py /opt/tangram/tangram/
COPY operator/tangram/api /opt/tangram/tangram/api
COPY operator/tangram/catalog /opt/tangram/tangram/catalog
COPY operator/tangram/kube /opt/tangram/tangram/kube
COPY operator/tangram/fleet /opt/tangram/tangram/fleet
COPY operator/tangram/runtimes /opt/tangram/tangram/runtimes
COPY operator/tangram/packing /opt/tangram/tangram/packing
COPY operator/tangram/partition /opt/tangram/tangram/partition
COPY engine/tangram_http /opt/tangram/tangram_http
RUN ["/opt/venv/bin/python", "-c", "import compileall as c, pathlib, py_compile; [p.chmod(p.stat().st_mode & 0o755 | (0o555 if p.is_dir() else 0o444)) for p in pathlib.Path('/opt/tangram').rglob('*')]; assert c.compile_dir('/opt/tangram', quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"]
WORKDIR /opt/empty
# root: a capability that a pod adds is effective for root alone (KEP-2763), and the driver changes MIG layouts for
# processes with CAP_SYS_ADMIN. The chart grants that one, and drops the others.
ENV USER=root
USER 0:0
ENTRYPOINT ["/opt/venv/bin/python", "-P", "-m", "tangram.partition.agent"]
LABEL org.opencontainers.image.title="tangram-agent" \
      org.opencontainers.image.description="Gives the GPUs of its node the MIG layouts that Tangram plans" \
      org.opencontainers.image.licenses="Apache-2.0"


FROM base AS fetch-dependencies
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG UV_DEFAULT_INDEX
ARG UV_INDEX
ARG UV_INSECURE_HOST
COPY requirements/fetch.lock /opt/build/requirements/
RUN sh /opt/build/requirements/install.sh /opt/build/requirements/fetch.lock \
 && echo /opt/tangram > "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tangram.pth" \
 && rm -f /opt/venv/.lock /opt/venv/bin/activate* /opt/venv/bin/Activate.ps1


FROM runtime AS fetch
COPY --from=fetch-dependencies /opt/venv /opt/venv
RUN ["/opt/venv/bin/python", "-c", "import ctypes, ssl; import huggingface_hub, obstore"]
# What fetches, and no more: it is the one process of Tangram with the Secrets of models.
COPY operator/tangram/__init__.py /opt/tangram/tangram/
COPY operator/tangram/api /opt/tangram/tangram/api
COPY operator/tangram/catalog /opt/tangram/tangram/catalog
COPY operator/tangram/fleet /opt/tangram/tangram/fleet
COPY operator/tangram/runtimes /opt/tangram/tangram/runtimes
COPY operator/tangram/sources /opt/tangram/tangram/sources
RUN ["/opt/venv/bin/python", "-c", "import compileall as c, pathlib, py_compile; [p.chmod(p.stat().st_mode & 0o755 | (0o555 if p.is_dir() else 0o444)) for p in pathlib.Path('/opt/tangram').rglob('*')]; assert c.compile_dir('/opt/tangram', quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"]
WORKDIR /opt/empty
USER 65532:65532
ENTRYPOINT ["/opt/venv/bin/python", "-P", "-m", "tangram.sources"]
LABEL org.opencontainers.image.title="tangram-fetch" \
      org.opencontainers.image.description="Reads and fetches checkpoints of hubs for Tangram" \
      org.opencontainers.image.licenses="Apache-2.0"


FROM base AS gateway-dependencies
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG UV_DEFAULT_INDEX
ARG UV_INDEX
ARG UV_INSECURE_HOST
COPY requirements/gateway.lock /opt/build/requirements/
RUN sh /opt/build/requirements/install.sh /opt/build/requirements/gateway.lock \
 && echo /opt/tangram > "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tangram.pth" \
 && printf '#!/opt/venv/bin/python -P\nimport runpy\nrunpy.run_module("tangram.gateway", run_name="__main__", alter_sys=True)\n' \
      > /opt/venv/bin/tangram-gateway \
 && chmod 0755 /opt/venv/bin/tangram-gateway \
 && rm -f /opt/venv/.lock /opt/venv/bin/activate* /opt/venv/bin/Activate.ps1


FROM runtime AS gateway
COPY --from=gateway-dependencies /opt/venv /opt/venv
RUN ["/opt/venv/bin/python", "-c", "import ctypes, ssl; import grpc, msgspec; import envoy.service.ext_proc.v3.external_processor_pb2"]
# What the picker imports, and no more: requests of clients pass through it.
COPY operator/tangram/__init__.py /opt/tangram/tangram/
COPY operator/tangram/api /opt/tangram/tangram/api
COPY operator/tangram/catalog /opt/tangram/tangram/catalog
COPY operator/tangram/fleet /opt/tangram/tangram/fleet
COPY operator/tangram/gateway /opt/tangram/tangram/gateway
COPY operator/tangram/kube /opt/tangram/tangram/kube
COPY operator/tangram/routing /opt/tangram/tangram/routing
COPY operator/tangram/runtimes /opt/tangram/tangram/runtimes
COPY engine/tangram_http /opt/tangram/tangram_http
RUN ["/opt/venv/bin/python", "-c", "import compileall as c, pathlib, py_compile; [p.chmod(p.stat().st_mode & 0o755 | (0o555 if p.is_dir() else 0o444)) for p in pathlib.Path('/opt/tangram').rglob('*')]; assert c.compile_dir('/opt/tangram', quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"]
WORKDIR /opt/empty
USER 65532:65532
EXPOSE 9003
ENTRYPOINT ["/opt/venv/bin/python", "-P", "-m", "tangram.gateway"]
LABEL org.opencontainers.image.title="tangram-gateway" \
      org.opencontainers.image.description="Chooses the replica of each request for Tangram's front door" \
      org.opencontainers.image.licenses="Apache-2.0"


FROM base AS engine-dependencies
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG UV_DEFAULT_INDEX
ARG UV_INDEX
ARG UV_INSECURE_HOST
COPY requirements/engine.lock /opt/build/requirements/
RUN sh /opt/build/requirements/install.sh /opt/build/requirements/engine.lock \
 && echo /opt/tangram > "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tangram.pth" \
 && printf '#!/opt/venv/bin/python -P\nimport runpy\nrunpy.run_module("tangram_engine", run_name="__main__", alter_sys=True)\n' \
      > /opt/venv/bin/tangram-engine \
 && chmod 0755 /opt/venv/bin/tangram-engine \
 && rm -f /opt/venv/.lock /opt/venv/bin/activate* /opt/venv/bin/Activate.ps1
# Triton builds its launcher at the first launch of a kernel, with a C compiler. It is built here instead, with one that
# leaves with the layer's temporary files; pods find it in /opt/triton and write what they compile to TRITON_CACHE_DIR.
ENV TRITON_LIBCUDA_PATH=/opt/triton/libcuda
COPY requirements/compiler.lock requirements/triton_launcher.py /opt/build/requirements/
RUN sh /opt/build/requirements/install.sh /opt/build/requirements/compiler.lock /tmp/compiler \
 && ZIG_GLOBAL_CACHE_DIR=/tmp/compiler/cache ZIG_LOCAL_CACHE_DIR=/tmp/compiler/cache \
    /opt/venv/bin/python /opt/build/requirements/triton_launcher.py '/tmp/compiler/bin/python -m ziglang cc' /opt/triton \
 && rm -rf /tmp/compiler \
 && chmod -R a+rX /opt/triton
ENV TRITON_CACHE_MANAGER=tangram_engine.kernels.image_cache:ImageCache \
    TANGRAM_IMAGE_CACHE=/opt/triton/cache \
    TRITON_CACHE_DIR=/tmp/triton


FROM engine-dependencies AS engine-kernels
# The kernels that the engine's start needs, compiled by starting it on simulated GPUs: hence all that starts, but no
# server. What changes elsewhere leaves this layer alone.
ARG KERNEL_ARCHITECTURES="80 89 90 100"
ARG KERNEL_MODELS=""
ARG KERNEL_FORMATS=""
COPY requirements/simulated_gpu.py requirements/compile_kernels.py operator/tangram/catalog/models.yaml /opt/build/kernels/
COPY engine/tangram_engine/*.py /opt/tangram/tangram_engine/
COPY engine/tangram_engine/cache /opt/tangram/tangram_engine/cache
COPY engine/tangram_engine/checkpoint /opt/tangram/tangram_engine/checkpoint
COPY engine/tangram_engine/kernels /opt/tangram/tangram_engine/kernels
COPY engine/tangram_engine/models /opt/tangram/tangram_engine/models
COPY engine/tangram_engine/quantize /opt/tangram/tangram_engine/quantize
COPY engine/tangram_engine/run /opt/tangram/tangram_engine/run
COPY engine/tangram_engine/sample /opt/tangram/tangram_engine/sample
COPY engine/tangram_engine/schedule /opt/tangram/tangram_engine/schedule
RUN /opt/venv/bin/python /opt/build/kernels/compile_kernels.py /opt/triton/cache \
      --catalog /opt/build/kernels/models.yaml --architectures ${KERNEL_ARCHITECTURES} \
      --models ${KERNEL_MODELS} --formats ${KERNEL_FORMATS} \
 && chmod -R a+rX /opt/triton/cache


# Not copied into the stage "runtime": torch and its libraries are 6 GB, which builder and nodes would hold twice.
FROM engine-kernels AS engine
COPY models/tangram-tiny /models/tangram-tiny
COPY engine/tangram_engine /opt/tangram/tangram_engine
COPY engine/tangram_http /opt/tangram/tangram_http
RUN rm -rf /opt/build \
 && mkdir -p /opt/empty \
 && chmod -R a+rX /opt/tangram \
 && find /models ! -perm -a=r -exec chmod a+rX {} + \
 && find / -xdev -type f -perm /6000 -exec chmod a-s {} + \
 && /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/tangram
WORKDIR /opt/empty
USER 65532:65532
EXPOSE 8000
# Process 1 ignores a SIGTERM for which it has no handler yet: a pod that is deleted in the instant of its start would hold
# its GPU for its whole grace period, as long as a drain may take.
ENTRYPOINT ["/opt/venv/bin/dumb-init", "--single-child", "--", "/opt/venv/bin/python", "-P", "-m", "tangram_engine"]
LABEL org.opencontainers.image.title="tangram-engine" \
      org.opencontainers.image.description="A small, operable OpenAI-compatible inference engine" \
      org.opencontainers.image.licenses="Apache-2.0"
