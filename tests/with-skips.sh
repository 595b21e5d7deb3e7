#!/bin/bash
# Runs a command that runs tests, and then lists what they had to skip: with-skips.sh COMMAND...
# A test that cannot run adds a line `part<TAB>reason` to the file that CRISP_SKIPS names. With CI=true that is a failure.
# Interrupted, it ends the command and removes what tests of a node leave behind when they are killed. CRISP_SWEEPER names the
# test program that does that, one that is built: node, if nothing is said.
set -uo pipefail
CRISP_SKIPS=$(mktemp)
export CRISP_SKIPS
trap 'rm -f "$CRISP_SKIPS"' EXIT

interrupted() {
  trap '' INT TERM HUP
  kill -TERM -- "-$command" 2> /dev/null
  wait "$command"
  echo "Interrupted; removing what is left of the tests." >&2
  # That can be interrupted too.
  trap 'exit 130' INT TERM HUP
  cargo test --quiet --test "${CRISP_SWEEPER:-node}" -- --exact lab::scratch::tests::what_killed_tests_left_is_removed \
    > /dev/null 2>&1
  exit 130
}

# A process group of its own, so that all of it ends.
set -m
"$@" &
command=$!
set +m
trap interrupted INT TERM HUP
wait "$command"
status=$?
if [ -s "$CRISP_SKIPS" ]; then
  echo
  echo "Skipped:"
  sort -u "$CRISP_SKIPS" | while IFS=$'\t' read -r part reason; do printf '  %-40s %s\n' "$part" "$reason"; done
  if [ "${CI-}" = true ]; then
    echo "CI=true: a skipped part counts as failed." >&2
    [ $status -ne 0 ] || status=1
  fi
fi
exit $status
