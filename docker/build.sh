#!/usr/bin/env bash
# Builds the image and starts `attnbench --version` and `attnbench doctor` in it, by whatever can build here.
#   docker/build.sh [ARGUMENTS OF build ...]      such as --target devel, --build-arg TORCH=2.11.0
# The image is named attnbench, that of another target attnbench-TARGET. Exit code 3: nothing here can build.
set -euo pipefail
cd "$(dirname "$0")/.."
target=runtime previous=
for word in "$@"; do
  if [ "$previous" = --target ]; then target=$word; fi
  case $word in --target=*) target=${word#--target=} ;; esac
  previous=$word
done
image=attnbench
if [ "$target" != runtime ]; then image=attnbench-$target; fi
for tool in docker podman buildah; do
  command -v "$tool" >/dev/null || continue
  if ! said=$("$tool" info 2>&1 >/dev/null); then
    printf 'docker/build.sh: %s does not answer: %s\n' "$tool" "$said" >&2
    continue
  fi
  "$tool" build -f docker/Dockerfile -t "$image" "$@" .
  if [ "$tool" = buildah ]; then
    container=$(buildah from "$image")
    trap 'buildah rm "$container" >/dev/null' EXIT
    buildah run "$container" -- attnbench --version
    buildah run "$container" -- attnbench doctor
  else
    "$tool" run --rm "$image" attnbench --version
    "$tool" run --rm "$image" attnbench doctor
  fi
  exit
done
echo "docker/build.sh: not built here: none of docker, podman, buildah answers" >&2
exit 3
