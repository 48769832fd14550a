# SPDX-License-Identifier: Apache-2.0
# normserve for the CPU. Stages: build (everything, thrown away), cpu (what runs: the two programs,
# their shared libraries and the demo models, as a user without rights).
#   docker build -t normserve .                                  Debian 12
#   docker build -t normserve --build-arg DEBIAN_VERSION=13 .    Debian 13
ARG DEBIAN_VERSION=12

FROM debian:${DEBIAN_VERSION} AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV NORMSERVE_CACHE=/opt/build-cache
WORKDIR /src
# The set-up alone first: its layer changes only when the list of what to install does.
COPY scripts/setup scripts/environment.sh scripts/libtorch-requirements.txt scripts/
RUN scripts/setup --build-only && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt CMakePresets.json ./
COPY cmake cmake
COPY proto proto
COPY server server
COPY client client
RUN . scripts/environment.sh \
    && cmake --preset release -DNORMSERVE_TESTS=OFF -DCMAKE_INSTALL_PREFIX=/opt/normserve \
       '-DCMAKE_INSTALL_RPATH=$ORIGIN/../libtorch/torch/lib' \
    && build_preset release normserve normserve-client \
    && cmake --install build/release --strip \
    && mkdir -p /opt/normserve/libtorch
# Of LibTorch the CPU half: what libtorch_cpu.so itself names as needed, in the wheel's own layout.
RUN cd "$NORMSERVE_CACHE/libtorch-2.11.0" \
    && cp --parents -t /opt/normserve/libtorch torch/lib/{libtorch_cpu.so,libc10.so,libgomp.so.1} \
       nvidia/cu13/lib/{libcudart.so.13,libcupti.so.13}
# Which packages hold the shared libraries that the programs load, by the names of this release.
RUN ldd /opt/normserve/bin/normserve /opt/normserve/bin/normserve-client > /tmp/ldd \
    && ! grep 'not found' /tmp/ldd \
    && awk '$3 ~ "^/(usr/)?lib/" {print $3}' /tmp/ldd | xargs readlink -f | xargs -n 1 basename | sort -u \
       | sed 's|^|*/x86_64-linux-gnu/|' | xargs dpkg-query -S | cut -d: -f1 | sort -u \
       > /opt/normserve/runtime-packages.txt \
    && cat /opt/normserve/runtime-packages.txt

FROM debian:${DEBIAN_VERSION} AS cpu
COPY --from=build /opt/normserve/runtime-packages.txt /opt/normserve/
RUN apt-get update \
    && xargs apt-get install -y --no-install-recommends < /opt/normserve/runtime-packages.txt \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin normserve
COPY --from=build /opt/normserve/libtorch /opt/normserve/libtorch
COPY --from=build /opt/normserve/bin /opt/normserve/bin
COPY models/demo /models
USER 10001:10001
EXPOSE 50051 9464
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["/opt/normserve/bin/normserve-client", "health", "--target", "127.0.0.1:50051"]
# SIGTERM drains: no new requests, those in flight end, exit code 0.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/normserve/bin/normserve"]
CMD ["--model", "bhyt-kjv=/models/bhyt-kjv", "--model", "simplegpt-kjv=/models/simplegpt-kjv", \
     "--listen", "0.0.0.0:50051", "--metrics-listen", "0.0.0.0:9464", "--device", "cpu"]
