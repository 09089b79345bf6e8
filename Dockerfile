# One target per image: operator, nodeagent, engine (SGLang, for GPUs), engine-reference (and engine-standin, which only
# tests use).
# `docker build --target operator .` and buildah build it alike. Requirements come before code: an edit of code
# installs one wheel and nothing else.
ARG BASE=docker.io/library/debian:trixie-slim
ARG SGLANG=docker.io/lmsysorg/sglang:v0.5.23-cu130

FROM ${BASE} AS python
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends python3 python3-venv ca-certificates \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*

# what each extra asks for, one file each: a change elsewhere in pyproject.toml leaves these files, and so the layers
# that are made from them, as they were
FROM python AS requirements
COPY pyproject.toml /
RUN python3 -c 'import pathlib, tomllib; \
[pathlib.Path(f"/{name}.txt").write_text("\n".join(lines) + "\n") for name, lines in \
tomllib.load(open("/pyproject.toml", "rb"))["project"]["optional-dependencies"].items()]'

FROM python AS wheel
RUN python3 -m venv /build && /build/bin/pip install -q "hatchling>=1.27"
COPY . /source
RUN touch /source/README.md && /build/bin/pip wheel -q --no-deps --no-build-isolation --wheel-dir /dist /source

FROM python AS venv
RUN python3 -m venv /opt/ling
ENV PATH=/opt/ling/bin:$PATH HOME=/tmp

FROM venv AS operator
COPY --from=requirements /operator.txt /
RUN pip install -q -r /operator.txt && python -m compileall -q /opt/ling/lib
COPY --from=wheel /dist /dist
RUN pip install -q --no-deps --no-index /dist/*.whl && python -m compileall -q /opt/ling/lib
ENV PYTHONDONTWRITEBYTECODE=1 USER=ling
USER 65532:65532
ENTRYPOINT ["ling-operator"]

# the keeper runs as 65532; the agent's manifest says uid 0, because the kubelet's folders belong to root
FROM venv AS nodeagent
COPY --from=requirements /nodeagent.txt /
RUN pip install -q -r /nodeagent.txt && python -m compileall -q /opt/ling/lib
COPY --from=wheel /dist /dist
RUN pip install -q --no-deps --no-index /dist/*.whl && python -m compileall -q /opt/ling/lib
ENV PYTHONDONTWRITEBYTECODE=1 USER=ling
USER 65532:65532
ENTRYPOINT ["ling-nodeagent"]

FROM venv AS engine-standin
COPY --from=requirements /engine.txt /
RUN pip install -q -r /engine.txt && python -m compileall -q /opt/ling/lib
COPY tests/support/standin.py /opt/standin/tests/support/standin.py
COPY --from=wheel /dist /dist
RUN pip install -q --no-deps --no-index /dist/*.whl && python -m compileall -q /opt/ling/lib /opt/standin
ENV PYTHONDONTWRITEBYTECODE=1 USER=ling PYTHONPATH=/opt/standin LING_RUNTIME=tests.support.standin:RUNTIME
USER 65532:65532
ENTRYPOINT ["ling-engine"]

# torch is the distribution's CPU build: a quarter of the size of PyPI's, which carries CUDA
FROM python AS engine-reference
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends python3-torch \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* \
 && python3 -m compileall -q /usr/lib/python3 /usr/lib/python3.13 \
 && python3 -m venv --system-site-packages /opt/ling
ENV PATH=/opt/ling/bin:$PATH HOME=/tmp
COPY --from=requirements /engine.txt /
RUN pip install -q -r /engine.txt && python -m compileall -q /opt/ling/lib
COPY --from=wheel /dist /dist
RUN pip install -q --no-deps --no-index /dist/*.whl && python -m compileall -q /opt/ling/lib
ENV PYTHONDONTWRITEBYTECODE=1 USER=ling
USER 65532:65532
ENTRYPOINT ["ling-engine"]

# SGLang as its makers ship it, with the compiler for kernels that are built at run time; name it by digest in production.
# All bytecode is made here: without it, a start takes 75 s instead of 46 (measured on an H200).
FROM ${SGLANG} AS engine
USER root
# SGLang is installed into the system's Python, so we are too; distributions mark theirs as managed by them alone
ENV PIP_BREAK_SYSTEM_PACKAGES=1
COPY --from=requirements /engine.txt /cuda.txt /
RUN python3 -c 'import importlib.metadata as m; v = m.version("sglang"); \
assert v == "0.5.23", f"this base has SGLang {v}; give one with 0.5.23: --build-arg SGLANG=IMAGE"' \
 && python3 -m pip install -q --no-cache-dir -r /engine.txt -r /cuda.txt
COPY --from=wheel /dist /dist
RUN python3 -m pip install -q --no-deps --no-index /dist/*.whl
RUN python3 -c 'import compileall, importlib.util as u, pathlib, site, sysconfig; \
folders = {*site.getsitepackages(), sysconfig.get_path("stdlib"), *u.find_spec("sglang").submodule_search_locations}; \
[compileall.compile_dir(folder, quiet=2, workers=0) for folder in folders]'
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 USER=ling HOME=/tmp LING_RUNTIME=sglang
USER 65532:65532
RUN ling-engine check --help >/dev/null && python3 -c 'import importlib.util as u; assert u.find_spec("sglang")'
ENTRYPOINT ["ling-engine"]
