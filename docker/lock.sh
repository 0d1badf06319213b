#!/bin/sh
# Writes requirements/*.txt: the packages of the images with the hashes of their files. Run it after
# a change of constraints.txt, constraints-gpu.txt or of the dependencies in pyproject.toml. Needs uv
# and the package index.
set -eu
cd "$(dirname "$0")/.."
compile() {
	uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--only-binary :all: "$@"
}
for extra in server worker; do
	compile --universal --constraint constraints.txt --extra "$extra" \
		--output-file "docker/requirements/$extra.txt" pyproject.toml
done
# vLLM's wheels are for x86-64 and the libc of Debian 12.
compile --python-platform x86_64-manylinux_2_36 --constraint constraints-gpu.txt --extra worker \
	--extra vllm --output-file docker/requirements/worker-cuda.txt pyproject.toml
# The tools of the wheel's stage.
printf 'build\nhatchling\n' | compile --universal --constraint constraints.txt \
	--output-file docker/requirements/wheel.txt -
