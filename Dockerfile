# fencepost without its embedded PostgreSQL: give it DATABASE_URL (compose.yaml does).
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/fencepost && /opt/fencepost/bin/pip install --no-cache-dir '.[server]'

FROM python:3.13-slim
COPY --from=build /opt/fencepost /opt/fencepost
RUN useradd --system --no-create-home fencepost
USER fencepost
ENV PATH=/opt/fencepost/bin:$PATH
EXPOSE 8080
# SIGTERM starts the graceful stop: allow DRAIN_DELAY + SHUTDOWN_TIMEOUT and a little more before SIGKILL.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD \
    ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
CMD ["fencepost", "serve"]
