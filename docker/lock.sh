#!/bin/sh
# Writes requirements/*.txt: the packages of the images with the hashes of their files. Run it after
# a change of constraints.txt or of the dependencies in pyproject.toml. Needs uv and the package index.
set -eu
cd "$(dirname "$0")/.."
for extra in server worker; do
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--no-annotate --only-binary :all: --constraint constraints.txt --extra "$extra" \
		--output-file "docker/requirements/$extra.txt" pyproject.toml
done
# The tools of the wheel's stage.
printf 'build\nhatchling\n' | uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate --only-binary :all: --constraint constraints.txt \
	--output-file docker/requirements/wheel.txt -
