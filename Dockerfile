# syntax=docker/dockerfile:1
# docker build -t ninfer .
# docker run -p 8080:8080 -v /models:/models:ro ninfer /models/MODEL.ninfer --host 0.0.0.0 --api-key KEY
FROM nvidia/cuda:13.0.1-base-ubuntu24.04

# Triton builds its launchers with a C compiler and the Python headers.
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv python3-dev gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 ninfer

WORKDIR /opt/ninfer
COPY requirements requirements
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir -r requirements/gpu.txt

COPY pyproject.toml README.md LICENSE ./
COPY actors actors
COPY kernels kernels
COPY ninfer ninfer
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps .

USER ninfer
ENV PATH=/opt/venv/bin:$PATH
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
    CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health', timeout=2)"]
ENTRYPOINT ["ninfer-serve"]
