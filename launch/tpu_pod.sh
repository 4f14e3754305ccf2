#!/usr/bin/env bash
# Trains one config on a TPU slice of Google Cloud: copies this checkout to every host, installs it
# and starts the same command on each; the processes find each other by the slice's metadata.
#
#   bash launch/tpu_pod.sh NAME ZONE --config=sop:vitl16 --config.data.dir=/mnt/share/tfds \
#       --workdir=/mnt/share/runs/a
#
# Data and workdir are folders that every host sees: Filestore, or a bucket mounted with gcsfuse.
# NAME: of a TPU VM (gcloud compute tpus tpu-vm create NAME --accelerator-type=v5litepod-256 ...).
# Needs gcloud, logged in. Started again, it continues; also after the slice was preempted and made
# anew.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ $# -lt 3 ]; then
  echo "usage: bash launch/tpu_pod.sh NAME ZONE --config=NAME --workdir=FOLDER [ARGUMENTS]" >&2
  exit 2
fi
name="$1" zone="$2"
shift 2
on_all() { gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="$1"; }

archive="$(mktemp -d)/ssl_jax.tar.gz"
git archive --format=tar.gz --prefix=ssl_jax/ --output="$archive" HEAD
gcloud compute tpus tpu-vm scp "$archive" "$name": --zone="$zone" --worker=all
on_all "tar xzf ssl_jax.tar.gz && pip install --quiet -e './ssl_jax[train,tpu]'"

command="$(printf '%q ' python3 -m ssl_jax train --distributed "$@")"
on_all "cd ssl_jax && exec $command"
