#!/usr/bin/env bash
# Builds the image and starts `attnbench --version` and `attnbench doctor` in it, by whatever can build here.
#   docker/build.sh [ARGUMENTS OF build ...]      such as --target devel, --build-arg TORCH=2.11.0
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in docker podman buildah; do
  "$tool" info >/dev/null 2>&1 || continue
  "$tool" build -f docker/Dockerfile -t attnbench "$@" .
  if [ "$tool" = buildah ]; then
    container=$(buildah from attnbench)
    trap 'buildah rm "$container" >/dev/null' EXIT
    buildah run "$container" -- attnbench --version
    buildah run "$container" -- attnbench doctor
  else
    "$tool" run --rm attnbench attnbench --version
    "$tool" run --rm attnbench attnbench doctor
  fi
  exit
done
echo "docker/build.sh: not built here: none of docker, podman, buildah answers" >&2
exit 3
