#!/bin/sh
# Writes .env for compose.yml with the secrets of this installation and the number of GPUs.
#   ./make-env.sh /srv/models      folder whose subfolders are base models
set -eu

models=${1:?usage: ./make-env.sh FOLDER_OF_BASE_MODELS}
if [ ! -d "$models" ]; then
	echo "error: $models is not a folder: create it first (it may be empty)" >&2
	exit 1
fi
models=$(cd "$models" && pwd)
cd "$(dirname "$0")"
if [ -e .env ]; then
	echo "error: $PWD/.env exists and holds the password of the database: edit it instead" >&2
	exit 1
fi

secret() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
broker=$(secret)
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
files=compose.yml
profiles=
if [ "$gpus" -gt 0 ]; then
	files=compose.yml:compose.gpu.yml
	profiles=gpus-$((gpus > 8 ? 8 : gpus))
fi

# The services without a model need 12 GiB at most. Inference gets a quarter of the rest, and each
# training worker an equal share of the remainder.
total=$(awk '$1 == "MemTotal:" {print int($2 / 1024)}' "/proc/meminfo")
others=$((total / 2 < 12288 ? total / 2 : 12288))
workers=$((gpus < 1 ? 1 : gpus > 8 ? 8 : gpus))
inference=$(((total - others) / 4))
memory=$(((total - others - inference) / workers))m

umask 077
cat > .env <<END
# Keep this file. Without it, the database and its backups cannot be opened.
COMPOSE_FILE=$files
COMPOSE_PROFILES=$profiles
TUNESMITH_MODELS=$models
TUNESMITH_TRAIN_MEMORY=$memory
TUNESMITH_INFERENCE_MEMORY=${inference}m
TUNESMITH_DATABASE_PASSWORD=$(secret)
TUNESMITH_BROKER_PASSWORD=$broker
TUNESMITH_WORKER_TOKEN=$(secret)
TUNESMITH_INFERENCE_TOKEN=$(secret)
# Addresses of the API and the broker for workers on this host.
TUNESMITH_SERVER_URL=http://api:8000
TUNESMITH_BROKER_URL=redis://:$broker@valkey:6379/0
END
echo "wrote $(pwd)/.env ($files, GPUs: $gpus, memory of a training worker: $memory)"
