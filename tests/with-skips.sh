#!/bin/bash
# Runs a command that runs tests, and then lists what they had to skip: with-skips.sh COMMAND...
# A test that cannot run adds a line `part<TAB>reason` to the file that CRISP_SKIPS names.
set -uo pipefail
CRISP_SKIPS=$(mktemp)
export CRISP_SKIPS
trap 'rm -f "$CRISP_SKIPS"' EXIT
"$@"
status=$?
if [ -s "$CRISP_SKIPS" ]; then
  echo
  echo "Skipped:"
  sort -u "$CRISP_SKIPS" | while IFS=$'\t' read -r part reason; do printf '  %-28s %s\n' "$part" "$reason"; done
  if [ "${CI-}" = true ]; then
    echo "CI=true: a skipped part counts as failed." >&2
    [ $status -ne 0 ] || status=1
  fi
fi
exit $status
