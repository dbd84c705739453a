# syntax=docker/dockerfile:1
# tributary as one small image: built with the pinned toolchain, run by a user without rights.

FROM rust:1.95.0-bookworm AS build
# The image's own toolchain, without the components that rust-toolchain.toml adds for developers.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /build
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/build/target \
    cargo build --release --locked -p tributary && cp target/release/tributary /usr/local/bin/tributary

FROM debian:12.12-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home tributary
COPY --from=build /usr/local/bin/tributary /usr/local/bin/tributary
COPY stack/compose/healthy /usr/local/bin/healthy
USER 10001
EXPOSE 9400
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=5 CMD ["healthy"]
ENTRYPOINT ["tributary"]
CMD ["run", "--config", "/etc/tributary/tributary.toml"]
