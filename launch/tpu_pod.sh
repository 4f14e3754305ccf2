#!/usr/bin/env bash
# Trains one config on a TPU slice of Google Cloud: copies this checkout, which must have no changes
# that are not committed, to every host, installs it and starts the same command on each; the
# processes find each other by the slice's metadata.
#
#   bash launch/tpu_pod.sh NAME ZONE --config=sop:vitl16 --config.data.dir=/mnt/share/tfds \
#       --workdir=/mnt/share/runs/a
#
#   bash launch/tpu_pod.sh NAME ZONE stop      saves and stops a run: Ctrl-C ends the connection alone
#
# Data and workdir are folders that every host sees. A Filestore serves both; a bucket mounted with
# gcsfuse serves the data alone (a checkpoint is completed by renaming a folder, which gcsfuse refuses).
# NAME: of a TPU VM (gcloud compute tpus tpu-vm create NAME --accelerator-type=v5litepod-256 ...).
# Needs gcloud, logged in. Started again, it continues; also after the slice was preempted and made
# anew.

set -euo pipefail
unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ $# -lt 3 ]; then
  echo "usage: bash launch/tpu_pod.sh NAME ZONE --config=NAME --workdir=FOLDER [ARGUMENTS]" >&2
  echo "       bash launch/tpu_pod.sh NAME ZONE stop" >&2
  exit 2
fi
name="$1" zone="$2"
shift 2
on_all() { gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="$1"; }

if [ "$1" = stop ]; then
  on_all "pkill -TERM -f '[s]sl_jax train'"
  exit
fi

changed="$(git status --porcelain --untracked-files=no)"
if [ -n "$changed" ]; then
  echo "only commits are copied; commit or stash first: ${changed//$'\n'/,}" >&2
  exit 2
fi
folder="$(mktemp -d)"
trap 'rm -r "$folder"' EXIT
archive="$folder/ssl_jax.tar.gz"
git archive --format=tar.gz --prefix=ssl_jax/ --output="$archive" HEAD
gcloud compute tpus tpu-vm scp "$archive" "$name": --zone="$zone" --worker=all
# The images of TPU VMs have Python 3.10; uv brings another.
on_all "if pgrep -f '[s]sl_jax train'; then echo 'a run is still alive: stop it first'; exit 1; fi;
  tar xzf ssl_jax.tar.gz && python3 -m pip install --quiet --user uv &&
  python3 -m uv venv --quiet --allow-existing --python 3.12 ssl_jax_env &&
  python3 -m uv pip install --quiet --python ssl_jax_env/bin/python -e './ssl_jax[train,tpu]'"

command="$(printf '%q ' ../ssl_jax_env/bin/python -m ssl_jax train --distributed "$@")"
on_all "cd ssl_jax && exec $command"
