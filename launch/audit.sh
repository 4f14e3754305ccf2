#!/usr/bin/env bash
# Asks the package index for known vulnerabilities of what requirements.lock pins, with pip-audit in
# an environment of its own.
#
#   bash launch/audit.sh        exit code 1: some are known, each is named
#
# An index that knows nothing of vulnerabilities (many mirrors) is said to have been no help, and is
# no failure.

set -euo pipefail
unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder="$(mktemp -d)"
trap 'rm -r "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip --disable-pip-version-check --quiet install "pip-audit>=2.9,<3"

status=0
"$folder/venv/bin/pip-audit" --requirement requirements.lock --no-deps --disable-pip \
  --progress-spinner off --format json --output "$folder/found.json" || status=$?
if [ ! -s "$folder/found.json" ]; then exit "$status"; fi

"$folder/venv/bin/python" - "$folder/found.json" <<'PY'
import json, sys

with open(sys.argv[1]) as file:
    found = json.load(file)["dependencies"]
skipped = [entry["name"] for entry in found if "skip_reason" in entry]
known = [entry for entry in found if entry.get("vulns")]
for entry in known:
    for hole in entry["vulns"]:
        fixed = ", ".join(hole["fix_versions"]) or "no version yet"
        print(f"{entry['name']} {entry['version']}: {hole['id']}, fixed in {fixed}")
checked = len(found) - len(skipped)
print(f"audit: {checked} of {len(found)} packages checked, {len(known)} with known vulnerabilities")
if skipped and not checked:
    print("audit: this index says nothing of vulnerabilities; ask where PyPI itself is reached")
sys.exit(bool(known))
PY
